#include "runtime/fusion/RegionBuilder.h"
#include <algorithm>

namespace recast::fusion {

std::vector<int64_t> broadcastDims(std::span<const int64_t> a, std::span<const int64_t> b) {
  if (a.size() < b.size())
    std::swap(a, b);
  std::vector<int64_t> dims(a.begin(), a.end());
  for (size_t d = 0; d < b.size(); ++d)
    if (int64_t &size = dims[a.size() - b.size() + d]; size == 1)
      size = b[d];
  return dims;
}

int RegionBuilder::input(const TensorType &type) {
  region.inputs.push_back(type);
  return add(
      {.op = Op::Input, .type = type.dtype, .dims = type.dims, .index = static_cast<int>(region.inputs.size()) - 1});
}

int RegionBuilder::constant(DType type, double value) {
  if (!isFloat(type))
    return constantInt(type, static_cast<int64_t>(value));
  double rounded = type == DType::F64    ? value
                   : type == DType::F32  ? static_cast<double>(static_cast<float>(value))
                   : type == DType::BF16 ? static_cast<double>(static_cast<float>(BFloat16(value)))
                                         : static_cast<double>(static_cast<float>(Half(value)));
  return add({.op = Op::Constant, .type = type, .number = rounded});
}

int RegionBuilder::constantInt(DType type, int64_t value) {
  return add({.op = Op::Constant, .type = type, .integer = value});
}

int RegionBuilder::counter(std::vector<int64_t> dims) {
  return add({.op = Op::Counter, .type = DType::I64, .dims = std::move(dims)});
}

int RegionBuilder::binary(Op op, int x, int y) {
  return add({op, typeOf(x), broadcastDims(dimsOf(x), dimsOf(y)), {x, y}});
}

int RegionBuilder::compare(Op op, int x, int y) {
  return add({op, DType::Bool, broadcastDims(dimsOf(x), dimsOf(y)), {x, y}});
}

int RegionBuilder::select(int condition, int x, int y) {
  return add({Op::Select,
              typeOf(x),
              broadcastDims(dimsOf(condition), broadcastDims(dimsOf(x), dimsOf(y))),
              {condition, x, y}});
}

int RegionBuilder::cast(int x, DType type) { return typeOf(x) == type ? x : add({Op::Cast, type, dimsOf(x), {x}}); }

int RegionBuilder::view(int x, std::vector<int64_t> dims) {
  return dimsOf(x) == dims ? x : add({Op::View, typeOf(x), std::move(dims), {x}});
}

int RegionBuilder::expand(int x, std::vector<int64_t> dims) {
  return dimsOf(x) == dims ? x : add({Op::Expand, typeOf(x), std::move(dims), {x}});
}

int RegionBuilder::reduce(Op op, int x, std::vector<int64_t> axes) {
  std::vector<int64_t> dims = dimsOf(x);
  int64_t count = 1;
  for (int64_t axis : axes) {
    count *= dims[static_cast<size_t>(axis)];
    dims[static_cast<size_t>(axis)] = 1;
  }
  DType type = typeOf(x), result = isExtreme(op) ? type : isFloat(type) ? DType::F64 : DType::I64;
  if (count == 1)
    return view(cast(x, result), std::move(dims));
  return add({.op = op, .type = result, .dims = std::move(dims), .args = {x}, .axes = std::move(axes)});
}

} // namespace recast::fusion
