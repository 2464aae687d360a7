#include "io/torch_pickle.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/utf8.h"
#include "io/torch_pickle_tables.h"

namespace megaslide {
namespace {
using namespace torch_pickle;

// Bounds that no checkpoint of ours comes near: real ones have some thousands of values and names of some dozen bytes.
constexpr size_t kMaxNodes = 1'000'000, kMaxItems = 4'000'000, kMaxString = 1 << 16, kMaxMarks = 256, kMaxTensors = 200'000,
                 kMaxNames = 64 << 20;
constexpr int kMaxDepth = 16;

enum class Kind : uint8_t { kNone, kBool, kInt, kFloat, kString, kBytes, kTuple, kList, kDict, kGlobal, kStorage, kTensor };
constexpr const char* kKindNames[] = {"None", "a bool", "an integer", "a number", "a string", "bytes",
                                      "a tuple", "a list", "a dictionary", "a global", "a storage", "a tensor"};

struct Node {
  Kind kind = Kind::kNone;
  DType dtype = DType::kU8;     // of a storage or a dtype
  int64_t number = 0;           // bool, integer; elements of a storage; index of a global or tensor
  std::string text;             // string; key of a storage
  std::vector<uint32_t> items;  // tuple, list; keys and values of a dictionary in turn
};

class Machine {
 public:
  Machine(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  TorchPickle run() {
    while (step()) {
    }
    if (stack_.size() != 1) fail(at_, fmt::format("the pickle ends with {} values instead of one", stack_.size()));
    TorchPickle out;
    collect(stack_[0], out);
    return out;
  }

 private:
  [[noreturn]] void fail(size_t at, const std::string& message, const std::string& remedy = {}) const {
    throw Error(fmt::format("{} byte {}: {}", source_, at, message),
                remedy.empty() ? "the file is damaged or was not written by torch.save: download or copy it again" : remedy);
  }
  [[noreturn]] void refuse(const std::string& what) const {
    fail(op_at_, what + ": not a tensor; nothing was run",
         "get the weights from a source you trust, as safetensors, or save the model's state_dict() alone");
  }

  // Reading.
  std::string_view take(size_t n) {
    if (n > bytes_.size() - at_) fail(at_, fmt::format("cut short: {} bytes are needed, {} are left", n, bytes_.size() - at_));
    const std::string_view out = bytes_.substr(at_, n);
    at_ += n;
    return out;
  }
  uint64_t number(size_t n) {
    const std::string_view raw = take(n);
    uint64_t value = 0;
    for (size_t i = n; i-- > 0;) value = value << 8 | static_cast<unsigned char>(raw[i]);
    return value;
  }
  std::string_view line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos || end - at_ > 1024) fail(at_, "a name without an end");
    const std::string_view out = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return out;
  }
  std::string_view text(uint64_t n) {
    if (n > kMaxString) fail(op_at_, fmt::format("a string of {} bytes; at most {} are read", n, kMaxString));
    return take(static_cast<size_t>(n));
  }

  // The stack.
  uint32_t make(Node node) {
    items_ += node.items.size();
    if (nodes_.size() >= kMaxNodes || items_ > kMaxItems) fail(op_at_, "more values than any checkpoint has");
    nodes_.push_back(std::move(node));
    return static_cast<uint32_t>(nodes_.size() - 1);
  }
  void push(uint32_t index) {
    if (stack_.size() >= kMaxItems) fail(op_at_, "more values than any checkpoint has");
    stack_.push_back(index);
  }
  void push_new(Kind kind, int64_t number = 0) {
    Node n;
    n.kind = kind;
    n.number = number;
    push(make(std::move(n)));
  }
  void push_text(Kind kind, std::string_view content) {
    Node n;
    n.kind = kind;
    n.text = content;
    push(make(std::move(n)));
  }
  uint32_t pop() {
    if (stack_.size() <= floor()) fail(op_at_, "the stack is empty");
    const uint32_t top = stack_.back();
    stack_.pop_back();
    return top;
  }
  Node& top(Kind kind) {
    if (stack_.size() <= floor()) fail(op_at_, "the stack is empty");
    Node& n = nodes_[stack_.back()];
    if (n.kind != kind) fail(op_at_, fmt::format("expected {}, got {}", kKindNames[static_cast<int>(kind)], kKindNames[static_cast<int>(n.kind)]));
    return n;
  }
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::vector<uint32_t> pop_to_mark() {
    if (marks_.empty()) fail(op_at_, "there is no mark on the stack");
    std::vector<uint32_t> out(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return out;
  }
  void push_tuple(std::vector<uint32_t> items) {
    Node n;
    n.kind = Kind::kTuple;
    n.items = std::move(items);
    push(make(std::move(n)));
  }
  void push_tuple_of(size_t n) {
    std::vector<uint32_t> items(n);
    for (size_t i = n; i-- > 0;) items[i] = pop();
    push_tuple(std::move(items));
  }
  void append(Node& to, const std::vector<uint32_t>& items) {
    items_ += items.size();
    if (items_ > kMaxItems) fail(op_at_, "more values than any checkpoint has");
    to.items.insert(to.items.end(), items.begin(), items.end());
  }
  void set_items(const std::vector<uint32_t>& items) {
    if (items.size() % 2) fail(op_at_, "a dictionary's key without its value");
    append(top(Kind::kDict), items);
  }
  void store(uint64_t index) {
    if (stack_.size() <= floor()) fail(op_at_, "the stack is empty");
    if (index >= kMaxNodes) fail(op_at_, fmt::format("memo number {}; at most {} are kept", index, kMaxNodes));
    memo_[static_cast<uint32_t>(index)] = stack_.back();
  }
  void recall(uint64_t index) {
    const auto it = index < kMaxNodes ? memo_.find(static_cast<uint32_t>(index)) : memo_.end();
    if (it == memo_.end()) fail(op_at_, fmt::format("memo number {} was never stored", index));
    push(it->second);
  }

  void push_global(std::string_view module, std::string_view name) {
    const std::string full = std::string(module) + "." + std::string(name);
    for (size_t i = 0; i < std::size(kGlobals); ++i)
      if (full == kGlobals[i].name) return push_new(Kind::kGlobal, static_cast<int64_t>(i));
    const std::string shown = quote_for_message(full);
    refuse("global " + shown.substr(1, shown.size() - 2));
  }
  void push_stack_global() {
    const uint32_t name = pop(), module = pop();
    if (nodes_[name].kind != Kind::kString || nodes_[module].kind != Kind::kString) fail(op_at_, "a global whose name is no string");
    push_global(nodes_[module].text, nodes_[name].text);
  }
  const KnownGlobal* as_global(uint32_t index) const {
    const Node& n = nodes_[index];
    return n.kind == Kind::kGlobal ? &kGlobals[n.number] : nullptr;
  }

  // ('storage', STORAGE TYPE, KEY, LOCATION, ELEMENTS)
  void push_persistent(uint32_t id) {
    const Node& t = nodes_[id];
    const auto item = [&](size_t i) -> const Node& { return nodes_[t.items[i]]; };
    if (t.kind != Kind::kTuple || t.items.size() < 5 || item(0).kind != Kind::kString || item(0).text != "storage") refuse("a persistent id of another kind");
    const KnownGlobal* type = as_global(t.items[1]);
    if (!type || (type->what != Global::kStorage && type->what != Global::kUntypedStorage)) refuse("a storage of unknown type");
    const Node &key = item(2), &count = item(4);
    if (key.kind != Kind::kString || count.kind != Kind::kInt || count.number < 0) fail(op_at_, "a storage without key or size");
    if (key.text.empty() || key.text.size() > 64 || key.text.find_first_not_of("0123456789") != std::string::npos)
      fail(op_at_, fmt::format("storage key {} is no number", quote_for_message(key.text)));
    Node n;
    n.kind = Kind::kStorage;
    n.dtype = type->dtype;
    n.text = key.text;
    if (__builtin_mul_overflow(count.number, dtype_bytes(type->dtype), &n.number)) fail(op_at_, "a storage whose size overflows 64 bits");
    const auto [it, fresh] = storages_.emplace(n.text, n.number);
    if (!fresh && it->second != n.number) fail(op_at_, fmt::format("storage {} is named with {} bytes here and {} before", n.text, n.number, it->second));
    push(make(std::move(n)));
  }

  Shape extents(uint32_t index, const char* what) const {
    const Node& t = nodes_[index];
    if (t.kind != Kind::kTuple || t.items.size() > 64) fail(op_at_, fmt::format("a tensor's {} is no tuple of at most 64 integers", what));
    Shape out;
    for (const uint32_t i : t.items) {
      if (nodes_[i].kind != Kind::kInt || nodes_[i].number < 0) fail(op_at_, fmt::format("a tensor's {} holds something else than integers >= 0", what));
      out.push_back(nodes_[i].number);
    }
    return out;
  }

  // _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks, [metadata]); v3 with the dtype after hooks.
  void push_tensor(const std::vector<uint32_t>& a, bool v3) {
    if (a.size() < (v3 ? 7u : 6u) || a.size() > (v3 ? 8u : 7u)) fail(op_at_, fmt::format("a tensor of {} arguments", a.size()));
    const Node &storage = nodes_[a[0]], &offset = nodes_[a[1]];
    if (storage.kind != Kind::kStorage) fail(op_at_, "a tensor without a storage");
    if (offset.kind != Kind::kInt || offset.number < 0) fail(op_at_, "a tensor's offset is no integer >= 0");
    TorchTensor t;
    t.dtype = storage.dtype;
    if (v3) {
      const KnownGlobal* type = as_global(a[6]);
      if (!type || type->what != Global::kDType) refuse("a tensor of unknown type");
      t.dtype = type->dtype;
    }
    t.storage = storage.text;
    t.storage_bytes = storage.number;
    t.offset = offset.number;
    t.shape = extents(a[2], "size");
    t.stride = extents(a[3], "stride");
    if (t.shape.size() != t.stride.size()) fail(op_at_, fmt::format("a tensor of {} sizes and {} strides", t.shape.size(), t.stride.size()));
    check_extent(t);
    if (tensors_.size() >= kMaxTensors) fail(op_at_, "more tensors than any checkpoint has");
    tensors_.push_back(std::move(t));
    push_new(Kind::kTensor, static_cast<int64_t>(tensors_.size() - 1));
  }

  // Inside its storage, and no element stands for many: then no shape, however large, asks for more than the file holds.
  void check_extent(const TorchTensor& t) const {
    const int64_t available = t.storage_bytes / dtype_bytes(t.dtype);
    int64_t count = 1, last = t.offset;
    bool wraps = false;
    for (const int64_t d : t.shape) wraps = wraps || __builtin_mul_overflow(count, d, &count);
    for (size_t i = 0; i < t.shape.size() && count; ++i) {
      int64_t step = 0;
      wraps = wraps || __builtin_mul_overflow(t.shape[i] - 1, t.stride[i], &step) || __builtin_add_overflow(last, step, &last);
    }
    const auto describe = [&] { return fmt::format("a tensor {} of strides {} at element {}", to_string(t.shape), to_string(t.stride), t.offset); };
    if (wraps || last < 0) fail(op_at_, describe() + ": its size overflows 64 bits");
    if (count > 0 && last >= available)
      fail(op_at_, fmt::format("{} reaches element {} of storage {}, which has {}", describe(), last, t.storage, available));
    if (count > available)
      fail(op_at_, describe() + ": elements that stand for several (an expanded tensor)", "save it again after .contiguous()");
  }

  // Calls stand for data here: these five build a value, nothing else is called.
  void reduce() {
    const uint32_t args = pop(), callee = pop();
    if (nodes_[args].kind != Kind::kTuple) fail(op_at_, "REDUCE without a tuple of arguments");
    const std::vector<uint32_t>& a = nodes_[args].items;  // until a node is made; a copy could be made a million times
    const KnownGlobal* g = as_global(callee);
    if (!g) refuse(fmt::format("REDUCE of {}", kKindNames[static_cast<int>(nodes_[callee].kind)]));
    switch (g->what) {
      case Global::kOrderedDict: return push_ordered_dict(a);
      case Global::kTensorV2: return push_tensor(a, false);
      case Global::kTensorV3: return push_tensor(a, true);
      case Global::kParameter:
        if (a.empty() || nodes_[a[0]].kind != Kind::kTensor) fail(op_at_, "a parameter without a tensor");
        return push(a[0]);
      case Global::kSize:
        if (a.size() != 1 || nodes_[a[0]].kind != Kind::kTuple) fail(op_at_, "torch.Size without a tuple");
        return push(a[0]);
      case Global::kStorage:
      case Global::kUntypedStorage:
      case Global::kDType: break;
    }
    refuse(std::string("REDUCE of ") + g->name);
  }
  void push_ordered_dict(const std::vector<uint32_t>& a) {
    std::vector<uint32_t> items;
    if (!a.empty()) {
      const Node& list = nodes_[a[0]];
      if (a.size() != 1 || list.kind != Kind::kList) fail(op_at_, "an OrderedDict of something else than a list");
      for (const uint32_t pair : list.items) {
        const Node& p = nodes_[pair];
        if ((p.kind != Kind::kTuple && p.kind != Kind::kList) || p.items.size() != 2) fail(op_at_, "an OrderedDict of something else than pairs");
        items.insert(items.end(), p.items.begin(), p.items.end());
      }
    }
    Node n;
    n.kind = Kind::kDict;
    n.items = std::move(items);
    push(make(std::move(n)));
  }
  // The attributes of a state_dict (its _metadata) say nothing about tensors.
  void build() {
    const uint32_t state = pop();
    if (stack_.size() <= floor()) fail(op_at_, "the stack is empty");
    if (nodes_[stack_.back()].kind != Kind::kDict) refuse(fmt::format("BUILD of {}", kKindNames[static_cast<int>(nodes_[stack_.back()].kind)]));
    if (nodes_[state].kind != Kind::kDict) refuse("BUILD with a state that is no dictionary");
  }

  bool step();
  bool collect_dict(const Node& dict, const std::string& prefix, int depth, TorchPickle& out);
  bool holds_tensor(uint32_t index, bool nested) const;
  void collect(uint32_t root, TorchPickle& out);

  std::string_view bytes_;
  const std::string& source_;
  size_t at_ = 0, op_at_ = 0, items_ = 0;
  std::vector<Node> nodes_;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;
  std::map<uint32_t, uint32_t> memo_;
  std::map<std::string, int64_t> storages_;  // key, bytes
  std::vector<TorchTensor> tensors_;
  size_t visited_ = 0, name_bytes_ = 0;
};

bool Machine::step() {
  op_at_ = at_;
  if (at_ == bytes_.size()) fail(at_, "cut short: the pickle has no end");
  const auto op = static_cast<unsigned char>(bytes_[at_++]);
  switch (op) {
    case 0x80:  // PROTO
      if (const uint64_t version = number(1); version < 2 || version > 5) fail(op_at_, fmt::format("pickle protocol {}; 2 to 5 are read", version));
      break;
    case 0x95: take(8); break;  // FRAME: its length says nothing new
    case '.': return false;     // STOP
    case 'N': push_new(Kind::kNone); break;
    case 0x88: push_new(Kind::kBool, 1); break;
    case 0x89: push_new(Kind::kBool, 0); break;
    case 'J': push_new(Kind::kInt, static_cast<int32_t>(number(4))); break;
    case 'K': push_new(Kind::kInt, static_cast<int64_t>(number(1))); break;
    case 'M': push_new(Kind::kInt, static_cast<int64_t>(number(2))); break;
    case 0x8a: {  // LONG1: little-endian two's complement
      const uint64_t n = number(1);
      if (n > 8) fail(op_at_, fmt::format("an integer of {} bytes; at most 8 are read", n));
      uint64_t value = number(n);
      if (n > 0 && n < 8 && value >> (8 * n - 1)) value |= ~uint64_t{0} << (8 * n);
      push_new(Kind::kInt, static_cast<int64_t>(value));
      break;
    }
    case 'G': take(8); push_new(Kind::kFloat); break;
    case 'X': push_text(Kind::kString, text(number(4))); break;
    case 0x8c: push_text(Kind::kString, text(number(1))); break;
    case 0x8d: push_text(Kind::kString, text(number(8))); break;
    case 'T': push_text(Kind::kString, text(number(4))); break;  // strings of Python 2
    case 'U': push_text(Kind::kString, text(number(1))); break;
    case 'B': push_text(Kind::kBytes, text(number(4))); break;
    case 'C': push_text(Kind::kBytes, text(number(1))); break;
    case '(':
      if (marks_.size() >= kMaxMarks) fail(op_at_, fmt::format("nested deeper than {}", kMaxMarks));
      marks_.push_back(stack_.size());
      break;
    case ')': push_tuple({}); break;
    case 't': push_tuple(pop_to_mark()); break;
    case 0x85: push_tuple_of(1); break;
    case 0x86: push_tuple_of(2); break;
    case 0x87: push_tuple_of(3); break;
    case ']': push_new(Kind::kList); break;
    case '}': push_new(Kind::kDict); break;
    case 'a': {
      const uint32_t item = pop();
      append(top(Kind::kList), {item});
      break;
    }
    case 'e': {
      const auto items = pop_to_mark();
      append(top(Kind::kList), items);
      break;
    }
    case 's': {
      const uint32_t value = pop(), key = pop();
      set_items({key, value});
      break;
    }
    case 'u': {
      const auto items = pop_to_mark();
      set_items(items);
      break;
    }
    case 'q': store(number(1)); break;
    case 'r': store(number(4)); break;
    case 0x94: store(memo_.size()); break;
    case 'h': recall(number(1)); break;
    case 'j': recall(number(4)); break;
    case 'c': {
      const std::string_view module = line(), name = line();
      push_global(module, name);
      break;
    }
    case 0x93: push_stack_global(); break;
    case 'Q': push_persistent(pop()); break;
    case 'R': reduce(); break;
    case 'b': build(); break;
    default:
      for (const KnownOpcode& known : kRefusedOpcodes)
        if (known.code == op) refuse(std::string("opcode ") + known.name);
      fail(op_at_, fmt::format("0x{:02x} is no opcode", op));
  }
  return true;
}

// Whether a value is a tensor, or with `nested` a dictionary that has one among its values.
bool Machine::holds_tensor(uint32_t index, bool nested) const {
  const Node& n = nodes_[index];
  if (n.kind == Kind::kTensor) return true;
  if (!nested || n.kind != Kind::kDict) return false;
  for (size_t i = 1; i < n.items.size(); i += 2)
    if (holds_tensor(n.items[i], false)) return true;
  return false;
}

// False when something in it is not taken along.
bool Machine::collect_dict(const Node& dict, const std::string& prefix, int depth, TorchPickle& out) {
  bool whole = true;
  for (size_t i = 0; i < dict.items.size(); i += 2) {
    const Node &key = nodes_[dict.items[i]], &value = nodes_[dict.items[i + 1]];
    if (++visited_ > kMaxItems) fail(at_, "more values than any checkpoint has");
    if (key.kind != Kind::kString) {
      whole = false;
      continue;
    }
    const std::string name = prefix + key.text;
    if (name.size() > kMaxString) fail(at_, "a tensor's name is too long");
    // One long key may stand in many places.
    if ((name_bytes_ += name.size()) > kMaxNames) fail(at_, fmt::format("names of more than {} bytes in all", kMaxNames));
    if (value.kind == Kind::kDict) {
      if (depth >= kMaxDepth) fail(at_, fmt::format("dictionaries nested deeper than {}", kMaxDepth));
      whole = collect_dict(value, name + ".", depth + 1, out) && whole;
    } else if (value.kind == Kind::kTensor) {
      if (out.tensors.size() >= kMaxTensors) fail(at_, "more tensors than any checkpoint has");
      out.tensors.push_back(tensors_[static_cast<size_t>(value.number)]);
      out.tensors.back().name = name;
    } else {
      whole = whole && value.kind != Kind::kList && value.kind != Kind::kTuple;
    }
  }
  return whole;
}

void Machine::collect(uint32_t root, TorchPickle& out) {
  std::string prefix;
  for (int depth = 0; depth < kMaxDepth; ++depth) {
    const Node& n = nodes_[root];
    if (n.kind != Kind::kDict) fail(at_, fmt::format("it holds {}, not a dictionary of tensors", kKindNames[static_cast<int>(n.kind)]), "save the model's state_dict()");
    uint32_t next = root;
    bool direct = false;
    for (size_t i = 1; i < n.items.size(); i += 2) direct = direct || holds_tensor(n.items[i], false);
    for (const char* inner : {"state_dict", "model_state_dict", "model", "module"}) {
      if (direct || next != root) break;
      for (size_t i = 0; i < n.items.size(); i += 2)
        if (nodes_[n.items[i]].kind == Kind::kString && nodes_[n.items[i]].text == inner && nodes_[n.items[i + 1]].kind == Kind::kDict) next = n.items[i + 1];
    }
    if (next == root) break;
    out.warnings.push_back("only what stands under a key \"state_dict\", \"model\" or \"module\" is read; the rest is ignored");
    root = next;
  }
  if (out.warnings.size() > 1) out.warnings.resize(1);
  if (!collect_dict(nodes_[root], "", 0, out)) out.warnings.push_back("values that are no tensors with a name are ignored");
  std::set<std::string_view> names;
  for (const TorchTensor& t : out.tensors)
    if (!names.insert(t.name).second) fail(at_, fmt::format("tensor {} is there twice", quote_for_message(t.name)));
}

}  // namespace

bool TorchTensor::contiguous() const {
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && stride[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

int64_t TorchTensor::span() const {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t last = 0;
  for (size_t i = 0; i < shape.size(); ++i) last += (shape[i] - 1) * stride[i];
  return last + 1;
}

TorchPickle read_torch_pickle(std::string_view bytes, const std::string& source) { return Machine(bytes, source).run(); }

}  // namespace megaslide
