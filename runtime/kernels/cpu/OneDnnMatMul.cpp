// MatMul and Gemm. Operands stay in ONNX's layout: a transpose is a pair of strides.
#include "runtime/kernels/Parallel.h"
#include "runtime/kernels/cpu/OneDnn.h"
#include <cstring>

namespace recast::onednn {
namespace {

using Dims = dnnl::memory::dims;

/// Ones in front up to `rank` dimensions.
Dims padded(Dims dims, size_t rank) {
  dims.insert(dims.begin(), rank - dims.size(), 1);
  return dims;
}

void requireSameTypes(const StepSpec &spec) {
  for (const TensorType &input : spec.inputs)
    if (input.present() && input.dtype != spec.outputs[0].dtype)
      throw Refusal{"operands of different types"};
}

/// y[i] = c broadcast to [rows, columns], in units of Bytes.
template <typename Unit>
void broadcastRows(const Unit *c, int64_t cRows, int64_t cColumns, Unit *y, int64_t rows, int64_t columns) {
  parallelFor(rows, std::max<int64_t>(1, 16384 / columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const Unit *from = c + (cRows == 1 ? 0 : row * cColumns);
      if (cColumns == 1)
        std::fill_n(y + row * columns, columns, *from);
      else
        std::memcpy(y + row * columns, from, static_cast<size_t>(columns) * sizeof(Unit));
    }
  });
}

} // namespace

std::unique_ptr<Kernel> makeMatMul(const StepSpec &spec) {
  requireSameTypes(spec);
  DType type = spec.outputs[0].dtype;
  dataType(type);
  Dims a = spec.inputs[0].dims, b = spec.inputs[1].dims;
  if (a.size() == 1)
    a.insert(a.begin(), 1);
  if (b.size() == 1)
    b.push_back(1);
  int64_t m = a[a.size() - 2], k = a.back(), n = b.back();
  Dims aBatch(a.begin(), a.end() - 2), bBatch(b.begin(), b.end() - 2);
  if (elementCount(bBatch) == 1) {
    // One right operand for the whole batch: the batch joins the rows.
    a = {elementCount(aBatch) * m, k};
    b = {k, n};
  }
  size_t rank = std::max(a.size(), b.size());
  a = padded(a, rank);
  b = padded(b, rank);
  Dims y(rank);
  for (size_t d = 0; d + 2 < rank; ++d)
    y[d] = a[d] == 1 ? b[d] : a[d];
  y[rank - 2] = a[rank - 2];
  y[rank - 1] = n;
  dnnl::memory::desc aDesc = plain(a, type), bDesc = plain(b, type), yDesc = plain(y, type);
  dnnl::matmul::primitive_desc descriptor(engine(), aDesc, bDesc, yDesc, attributes());
  requireOptimised(descriptor);
  auto program = std::make_unique<Program>(spec);
  program->add(
      dnnl::matmul(descriptor),
      {{DNNL_ARG_SRC, {input(0), aDesc}}, {DNNL_ARG_WEIGHTS, {input(1), bDesc}}, {DNNL_ARG_DST, {output(0), yDesc}}});
  return program;
}

std::unique_ptr<Kernel> makeGemm(const StepSpec &spec) {
  requireSameTypes(spec);
  DType type = spec.outputs[0].dtype;
  bool transA = spec.attrs.getInt("transA", 0) != 0, transB = spec.attrs.getInt("transB", 0) != 0;
  float alpha = spec.attrs.getFloat("alpha", 1), beta = spec.attrs.getFloat("beta", 1);
  int64_t m = spec.outputs[0].dims[0], n = spec.outputs[0].dims[1];
  int64_t k = spec.inputs[0].dims[transA ? 0 : 1];
  dnnl::memory::desc aDesc({m, k}, dataType(type), transA ? Dims{1, m} : Dims{k, 1});
  dnnl::memory::desc bDesc({k, n}, dataType(type), transB ? Dims{1, k} : Dims{n, 1});
  dnnl::memory::desc yDesc = plain(spec.outputs[0].dims, type);
  std::vector<std::pair<int, Operand>> arguments = {
      {DNNL_ARG_SRC, {input(0), aDesc}}, {DNNL_ARG_WEIGHTS, {input(1), bDesc}}, {DNNL_ARG_DST, {output(0), yDesc}}};
  bool hasAddend = spec.inputs.size() > 2 && spec.inputs[2].present() && beta != 0;
  Dims c = hasAddend ? padded(spec.inputs[2].dims, 2) : Dims();
  auto program = std::make_unique<Program>(spec);
  dnnl::primitive_attr attr = attributes();
  dnnl::post_ops postOps;
  if (alpha != 1)
    postOps.append_eltwise(dnnl::algorithm::eltwise_linear, alpha, 0);
  dnnl::matmul::primitive_desc descriptor;
  if (hasAddend && alpha == 1 && beta == 1 && c == Dims{1, n}) {
    dnnl::memory::desc bias = plain(c, type);
    descriptor = dnnl::matmul::primitive_desc(engine(), aDesc, bDesc, bias, yDesc, attr);
    arguments.push_back({DNNL_ARG_BIAS, {input(2), bias}});
  } else {
    // Any other addend is spread over y first, and the product is added to it.
    if (hasAddend) {
      postOps.append_sum(beta);
      program->add([type, c, m, n](const KernelArgs &args) {
        if (byteSize(type) == 4)
          broadcastRows(args.inputs[2].as<uint32_t>(), c[0], c[1], args.outputs[0].as<uint32_t>(), m, n);
        else
          broadcastRows(args.inputs[2].as<uint16_t>(), c[0], c[1], args.outputs[0].as<uint16_t>(), m, n);
      });
    }
    attr.set_post_ops(postOps);
    descriptor = dnnl::matmul::primitive_desc(engine(), aDesc, bDesc, yDesc, attr);
  }
  requireOptimised(descriptor);
  program->add(dnnl::matmul(descriptor), std::move(arguments));
  return program;
}

} // namespace recast::onednn
