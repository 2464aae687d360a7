// Before inline functions that device code calls too, with what they call of the standard library: its constexpr
// functions (nvcc is told so) and <cmath>.
#pragma once
#ifdef __CUDACC__
#define MS_HOST_DEVICE __host__ __device__
#else
#define MS_HOST_DEVICE
#endif
