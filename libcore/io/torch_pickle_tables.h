// The words of PyTorch's pickles that mean a tensor, and the opcodes that are refused: for torch_pickle.cc alone.
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace megaslide::torch_pickle {

enum class Global : uint8_t { kOrderedDict, kTensorV2, kTensorV3, kParameter, kSize, kStorage, kUntypedStorage, kDType };

struct KnownGlobal {
  const char* name;
  Global what;
  DType dtype;
};
inline constexpr KnownGlobal kGlobals[] = {
    {"collections.OrderedDict", Global::kOrderedDict, DType::kU8},
    {"torch._utils._rebuild_tensor_v2", Global::kTensorV2, DType::kU8},
    {"torch._utils._rebuild_tensor_v3", Global::kTensorV3, DType::kU8},
    {"torch._utils._rebuild_parameter", Global::kParameter, DType::kU8},
    {"torch.Size", Global::kSize, DType::kU8},
    {"torch.storage.UntypedStorage", Global::kUntypedStorage, DType::kU8},
    {"torch.FloatStorage", Global::kStorage, DType::kF32},
    {"torch.DoubleStorage", Global::kStorage, DType::kF64},
    {"torch.HalfStorage", Global::kStorage, DType::kF16},
    {"torch.BFloat16Storage", Global::kStorage, DType::kBF16},
    {"torch.LongStorage", Global::kStorage, DType::kI64},
    {"torch.IntStorage", Global::kStorage, DType::kI32},
    {"torch.ShortStorage", Global::kStorage, DType::kI16},
    {"torch.CharStorage", Global::kStorage, DType::kI8},
    {"torch.ByteStorage", Global::kStorage, DType::kU8},
    {"torch.BoolStorage", Global::kStorage, DType::kBOOL},
    {"torch.ComplexFloatStorage", Global::kStorage, DType::kC64},
    {"torch.float8_e4m3fn", Global::kDType, DType::kF8_E4M3},
    {"torch.float8_e5m2", Global::kDType, DType::kF8_E5M2},
    {"torch.float8_e8m0fnu", Global::kDType, DType::kF8_E8M0},
    {"torch.float32", Global::kDType, DType::kF32},
    {"torch.float64", Global::kDType, DType::kF64},
    {"torch.float16", Global::kDType, DType::kF16},
    {"torch.bfloat16", Global::kDType, DType::kBF16},
    {"torch.int64", Global::kDType, DType::kI64},
    {"torch.int32", Global::kDType, DType::kI32},
    {"torch.int16", Global::kDType, DType::kI16},
    {"torch.int8", Global::kDType, DType::kI8},
    {"torch.uint8", Global::kDType, DType::kU8},
    {"torch.uint16", Global::kDType, DType::kU16},
    {"torch.uint32", Global::kDType, DType::kU32},
    {"torch.uint64", Global::kDType, DType::kU64},
    {"torch.bool", Global::kDType, DType::kBOOL},
};

struct KnownOpcode {
  unsigned char code;
  const char* name;
};
// Opcodes that a file of weights has no use for, for their names in messages.
inline constexpr KnownOpcode kRefusedOpcodes[] = {
    {'0', "POP"}, {'1', "POP_MARK"}, {'2', "DUP"}, {'F', "FLOAT"}, {'I', "INT"}, {'L', "LONG"}, {'P', "PERSID"}, {'S', "STRING"},
    {'V', "UNICODE"}, {'d', "DICT"}, {'g', "GET"}, {'i', "INST"}, {'l', "LIST"}, {'o', "OBJ"}, {'p', "PUT"}, {0x81, "NEWOBJ"},
    {0x82, "EXT1"}, {0x83, "EXT2"}, {0x84, "EXT4"}, {0x8b, "LONG4"}, {0x8e, "BINBYTES8"}, {0x8f, "EMPTY_SET"}, {0x90, "ADDITEMS"},
    {0x91, "FROZENSET"}, {0x92, "NEWOBJ_EX"}, {0x96, "BYTEARRAY8"}, {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"}};

}  // namespace megaslide::torch_pickle
