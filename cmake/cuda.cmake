# CUDA sources (*.cu): compiled as C++ for the host emulator of kernels/simt everywhere, and by nvcc for the
# architectures below where there is one, to see that they compile and what they take of a multiprocessor.

# ms_emulate(TARGET FILE.cu... [RACES]): adds CUDA sources to TARGET, for the emulator. Accesses to shared memory are
# watched for races, by the calls that GCC's -fsanitize=thread puts there (kernels/simt/race_hooks.cc answers them).
# Under AddressSanitizer, which excludes these, the sources are compiled for it instead; RACES keeps the calls.
function(ms_emulate TARGET)
  cmake_parse_arguments(ARG "RACES" "" "" ${ARGN})
  set(OPTIONS -x c++)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT MEGASLIDE_SANITIZE MATCHES "thread")
    if(NOT MEGASLIDE_SANITIZE)
      list(APPEND OPTIONS -fsanitize=thread)
    elseif(ARG_RACES)
      list(APPEND OPTIONS -fno-sanitize=${MEGASLIDE_SANITIZE} -fsanitize=thread)
    endif()
  endif()
  target_sources(${TARGET} PRIVATE ${ARG_UNPARSED_ARGUMENTS})
  set_source_files_properties(${ARG_UNPARSED_ARGUMENTS} TARGET_DIRECTORY ${TARGET} PROPERTIES LANGUAGE CXX
                              COMPILE_OPTIONS "${OPTIONS}")
  target_link_libraries(${TARGET} PUBLIC ms_simt)
endfunction()

# nvcc 12 is the first with C++20.
find_program(MEGASLIDE_NVCC nvcc PATHS /usr/local/cuda/bin)
set(MS_NVCC_USABLE OFF)
if(MEGASLIDE_NVCC AND NOT MEGASLIDE_SANITIZE)
  execute_process(COMMAND ${MEGASLIDE_NVCC} --version OUTPUT_VARIABLE VERSION ERROR_QUIET)
  if(VERSION MATCHES "release (([0-9]+)\\.[0-9]+)" AND CMAKE_MATCH_2 GREATER_EQUAL 12)
    set(MS_NVCC_USABLE ON)
    set(MS_NVCC_VERSION ${CMAKE_MATCH_1})
    set(MS_NVCC_MAJOR ${CMAKE_MATCH_2})
  endif()
endif()

# Ampere, Hopper, and consumer Blackwell where nvcc knows it.
set(ARCHITECTURES 80 90a)
if(MS_NVCC_VERSION VERSION_GREATER_EQUAL 12.8)
  list(APPEND ARCHITECTURES 120)
endif()
set(MEGASLIDE_CUDA_ARCHITECTURES "${ARCHITECTURES}" CACHE STRING "Architectures of the CUDA kernels, as nvcc names them")

# The programs contain the cuda device where nvcc and CUDA's libraries are found. cuBLASLt is opened when a run needs it.
if(MS_NVCC_USABLE)
  get_filename_component(MS_CUDA_ROOT ${MEGASLIDE_NVCC} REALPATH)
  get_filename_component(MS_CUDA_ROOT ${MS_CUDA_ROOT}/../.. ABSOLUTE)
  find_library(MEGASLIDE_CUDART cudart_static PATHS ${MS_CUDA_ROOT}/lib64 ${MS_CUDA_ROOT}/lib ${MS_CUDA_ROOT}/targets/x86_64-linux/lib NO_DEFAULT_PATH)
  find_library(MEGASLIDE_CUBLASLT cublasLt PATHS ${MS_CUDA_ROOT}/lib64 ${MS_CUDA_ROOT}/lib ${MS_CUDA_ROOT}/targets/x86_64-linux/lib NO_DEFAULT_PATH)
  find_path(MEGASLIDE_CUDA_INCLUDE cublasLt.h PATHS ${MS_CUDA_ROOT}/include ${MS_CUDA_ROOT}/targets/x86_64-linux/include NO_DEFAULT_PATH)
endif()
if(MEGASLIDE_CUDART AND MEGASLIDE_CUBLASLT AND MEGASLIDE_CUDA_INCLUDE)
  set(MS_CUDA_FOUND ON)
else()
  set(MS_CUDA_FOUND OFF)
endif()
option(MEGASLIDE_CUDA "Programs with the cuda device" ${MS_CUDA_FOUND})
if(MEGASLIDE_CUDA AND NOT MS_CUDA_FOUND)
  message(FATAL_ERROR "MEGASLIDE_CUDA=ON needs nvcc 12 or later, its libcudart_static, libcublasLt and headers; nvcc: ${MEGASLIDE_NVCC}")
endif()

# ms_nvcc_objects(TARGET FILE.cu...): the target compiles each file by nvcc into an object of build/cuda, listed in the
# target's property MS_OBJECTS. Beside the objects lie ptxas' reports.
# fmt 9 takes itself out of constexpr under nvcc, and then does not compile: FMT_USE_CONSTEXPR.
function(ms_nvcc_objects TARGET)
  set(FOLDER ${CMAKE_BINARY_DIR}/cuda)
  set(ARCHITECTURES)
  foreach(A ${MEGASLIDE_CUDA_ARCHITECTURES})
    list(APPEND ARCHITECTURES -gencode arch=compute_${A},code=sm_${A})
  endforeach()
  set(OBJECTS)
  foreach(FILE ${ARGN})
    get_filename_component(NAME ${FILE} NAME_WE)
    set(OBJECT ${FOLDER}/${NAME}.o)
    add_custom_command(
      OUTPUT ${OBJECT} ${FOLDER}/${NAME}.ptxas
      COMMAND ${CMAKE_SOURCE_DIR}/cmake/nvcc_report.sh ${FOLDER}/${NAME}.ptxas ${MEGASLIDE_NVCC} -std=c++20 -O3 -fmad=false
              -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler -fPIC,-ffile-prefix-map=${CMAKE_SOURCE_DIR}/= ${ARCHITECTURES} -Xptxas -v --expt-relaxed-constexpr -DFMT_USE_CONSTEXPR=1 -I${CMAKE_SOURCE_DIR}
              -I${CMAKE_SOURCE_DIR}/libcore -MD -MF ${OBJECT}.d -c ${FILE} -o ${OBJECT}
      DEPENDS ${FILE} ${CMAKE_SOURCE_DIR}/cmake/nvcc_report.sh
      DEPFILE ${OBJECT}.d
      COMMENT "nvcc ${NAME}.cu"
      VERBATIM)
    list(APPEND OBJECTS ${OBJECT})
  endforeach()
  file(MAKE_DIRECTORY ${FOLDER})
  add_custom_target(${TARGET} ALL DEPENDS ${OBJECTS})
  set_target_properties(${TARGET} PROPERTIES MS_OBJECTS "${OBJECTS}")
endfunction()
