# Compiler settings, third-party packages and the functions that the rooms' CMakeLists use.

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()
find_program(MOLD ld.mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()
# Programs ask the loader for what they use, whatever the compiler's default is (it differs between systems, and with sanitizers).
add_link_options(-Wl,--as-needed)

# -ffp-contract=off: fused multiply-adds are written out where they are wanted, so that every
# instruction set gives the same bits (spec: AdamW, codecs).
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror -ffp-contract=off -fno-math-errno)
# What is installed names no folder of the machine that built it: __FILE__ starts at the source tree.
add_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)
if(MEGASLIDE_SANITIZE)
  add_compile_options(-fsanitize=${MEGASLIDE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${MEGASLIDE_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The sanitizers' instrumentation makes GCC 12 see uninitialised reads in its own headers.
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-Wno-deprecated-declarations)  # libstdc++ 12's std::stable_sort uses what it deprecates
endif()

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(PNG REQUIRED)
find_package(ZLIB REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(dnnl REQUIRED)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(ZIP REQUIRED IMPORTED_TARGET libzip)
pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(AV REQUIRED IMPORTED_TARGET libavcodec libavformat libavutil libswscale)

include(cuda)

# ms_room(NAME [DEPS target...]): the static library ms_NAME of every .cc in this folder.
# The folder's name is the room's; link order follows the layering.
function(ms_room NAME)
  cmake_parse_arguments(ARG "" "" "DEPS;EXCLUDE" ${ARGN})
  file(GLOB SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  foreach(X ${ARG_EXCLUDE})
    list(REMOVE_ITEM SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/${X})
  endforeach()
  if(SOURCES)
    add_library(ms_${NAME} STATIC ${SOURCES})
    set(SCOPE PUBLIC)
  else()
    add_library(ms_${NAME} INTERFACE)
    set(SCOPE INTERFACE)
  endif()
  target_include_directories(ms_${NAME} ${SCOPE} ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/libcore)
  target_link_libraries(ms_${NAME} ${SCOPE} ${ARG_DEPS})
endfunction()

# ms_kernel([DEPS target...]): adds this folder's op.cpu.cc files to ms_kernels.
function(ms_kernel)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  target_sources(ms_kernels PRIVATE ${SOURCES})
  if(ARG_DEPS)
    target_link_libraries(ms_kernels PUBLIC ${ARG_DEPS})
  endif()
endfunction()

# ms_link_cuda(NAME): the program with the CUDA kernels and the cuda device, in a build that has them.
function(ms_link_cuda NAME)
  get_target_property(OBJECTS cuda_objects MS_OBJECTS)
  set_source_files_properties(${OBJECTS} PROPERTIES GENERATED ON EXTERNAL_OBJECT ON)
  target_sources(${NAME} PRIVATE ${OBJECTS} $<TARGET_OBJECTS:ms_cuda_host>)
  add_dependencies(${NAME} cuda_objects)
  target_link_libraries(${NAME} PRIVATE ms_cuda)
endfunction()

# ms_tool(NAME [CUDA] DEPS target...): the program NAME from NAME.cc ('-' becomes '_'). CUDA: with the cuda device, in a
# build that has it.
function(ms_tool NAME)
  cmake_parse_arguments(ARG "CUDA" "" "DEPS" ${ARGN})
  string(REPLACE "-" "_" FILE ${NAME})
  add_executable(${NAME} ${FILE}.cc)
  # Declarations of flags, run once: optimising them doubles the time that CLI11's headers take to compile.
  target_compile_options(${NAME} PRIVATE $<$<CONFIG:Release>:-O0>)
  target_link_libraries(${NAME} PRIVATE ms_tool_common ${ARG_DEPS})
  if(ARG_CUDA AND MEGASLIDE_CUDA)
    ms_link_cuda(${NAME})
  endif()
  install(TARGETS ${NAME} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# ms_tests(ROOM [DEPS target...] [LABELS label...]): one GoogleTest program of every .cc in this folder, each TEST a ctest.
function(ms_tests ROOM)
  cmake_parse_arguments(ARG "" "TIMEOUT" "DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  file(GLOB SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  add_executable(test_${ROOM} ${SOURCES})
  target_link_libraries(test_${ROOM} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gtest_main)
  target_compile_definitions(test_${ROOM} PRIVATE MEGASLIDE_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data" MEGASLIDE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  set_target_properties(test_${ROOM} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  gtest_discover_tests(test_${ROOM} TEST_PREFIX "${ROOM}." DISCOVERY_TIMEOUT 120 PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ROOM};${ARG_LABELS}")
endfunction()
