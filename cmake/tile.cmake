# Code for AVX512-BF16 and AMX: compiled with these flags where the compiler knows them, chosen at run time by
# kernels/tile/unit.h. Elsewhere the same files compile to nothing that is ever called.
include(CheckCXXCompilerFlag)
set(MS_TILE_FLAGS -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mfma -mamx-tile -mamx-bf16)
list(JOIN MS_TILE_FLAGS " " FLAGS)
check_cxx_compiler_flag("${FLAGS}" MEGASLIDE_TILE_FLAGS)
if(MEGASLIDE_TILE_FLAGS)
  target_compile_definitions(ms_kernels PRIVATE MEGASLIDE_TILE=1)
  # GCC 12 sees uninitialised reads in its own AVX-512 headers.
  list(APPEND MS_TILE_FLAGS -Wno-maybe-uninitialized -Wno-uninitialized)
else()
  target_compile_definitions(ms_kernels PRIVATE MEGASLIDE_TILE=0)
  set(MS_TILE_FLAGS)
endif()

# ms_tile_sources(FILE.cc...): files of this folder that hold such code. They include nothing with inline functions of
# external linkage but for plain declarations: the linker could pick their copies for everybody.
function(ms_tile_sources)
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ms_kernels PROPERTIES COMPILE_OPTIONS "${MS_TILE_FLAGS}")
endfunction()
