// MatMul and Gemm.
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

/// y = c broadcast to [rows, columns].
template <typename Unit> void broadcastRows(const Unit *c, const Dims &cDims, Unit *y, int64_t rows, int64_t columns) {
  parallelFor(rows, std::max<int64_t>(1, 16384 / columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const Unit *from = c + (cDims[0] == 1 ? 0 : row * cDims[1]);
      if (cDims[1] == 1)
        std::fill_n(y + row * columns, columns, *from);
      else
        std::memcpy(y + row * columns, from, static_cast<size_t>(columns) * sizeof(Unit));
    }
  });
}

/// The product of one step, in ONNX's layout: row-major, where a transpose is a pair of strides.
struct Product {
  Dims a, b, y;
  bool transA = false, transB = false;
};

dnnl::memory::desc matrix(const Dims &dims, bool transposed, DType type) {
  if (!transposed)
    return plain(dims, type);
  return {dims, dataType(type), Dims{1, dims[0]}};
}

struct Addend {
  size_t input = 0;
  Dims dims; ///< Two; empty where there is no addend.
  float beta = 1;
};

std::unique_ptr<Kernel> makeProduct(const StepSpec &spec, const Product &p, float alpha, const Addend &c, DType type) {
  auto program = std::make_unique<Program>(spec);
  Operand a = program->load(0, p.a, type), b = program->load(1, p.b, type);
  a.desc = matrix(p.a, p.transA, type), b.desc = matrix(p.b, p.transB, type);
  auto yDesc = plain(p.y, type);
  Operand y = program->target(yDesc, p.y);
  std::vector<std::pair<int, Operand>> arguments = {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, y}};
  dnnl::primitive_attr attr = attributes();
  dnnl::post_ops postOps;
  if (alpha != 1)
    postOps.append_eltwise(dnnl::algorithm::eltwise_linear, alpha, 0);
  dnnl::matmul::primitive_desc descriptor;
  auto withBias = [&] {
    auto bias = plain(c.dims, type);
    dnnl::matmul::primitive_desc candidate(engine(), a.desc, b.desc, bias, yDesc, attr);
    requireOptimised(candidate);
    descriptor = candidate;
    arguments.push_back({DNNL_ARG_BIAS, program->load(c.input, c.dims, type)});
  };
  auto withSum = [&] {
    // Any addend is spread over y first, and the product is added to it.
    if (!c.dims.empty()) {
      postOps.append_sum(c.beta);
      Operand from = program->load(c.input, c.dims, type);
      if (c.dims == p.y && from.slot.kind == Slot::Input && y.slot.kind == Slot::Output)
        program->allowInPlace(c.input);
      program->add([type, c, m = p.y[0], n = p.y[1], from = from.slot, to = y.slot,
                    self = program.get()](const KernelArgs &args) {
        const void *addend = self->address(args, from);
        void *out = self->address(args, to);
        if (out == addend)
          return;
        if (byteSize(type) == 4)
          broadcastRows(static_cast<const uint32_t *>(addend), c.dims, static_cast<uint32_t *>(out), m, n);
        else
          broadcastRows(static_cast<const uint16_t *>(addend), c.dims, static_cast<uint16_t *>(out), m, n);
      });
    }
    attr.set_post_ops(postOps);
    descriptor = {engine(), a.desc, b.desc, yDesc, attr};
    requireOptimised(descriptor);
  };
  bool plainBias = !c.dims.empty() && alpha == 1 && c.beta == 1 && c.dims[0] == 1 && c.dims[1] == p.y[1];
  if (plainBias)
    try {
      withBias();
    } catch (const Refusal &) {
      plainBias = false;
    } catch (const dnnl::error &) {
      plainBias = false;
    }
  if (!plainBias)
    withSum();
  program->add(dnnl::matmul(descriptor), std::move(arguments));
  program->store(y, p.y);
  return program;
}

} // namespace

std::unique_ptr<Kernel> makeMatMul(const StepSpec &spec) {
  Product p;
  p.a = spec.inputs[0].dims, p.b = spec.inputs[1].dims;
  if (p.a.size() == 1)
    p.a.insert(p.a.begin(), 1);
  if (p.b.size() == 1)
    p.b.push_back(1);
  int64_t m = p.a[p.a.size() - 2], k = p.a.back(), n = p.b.back();
  Dims aBatch(p.a.begin(), p.a.end() - 2), bBatch(p.b.begin(), p.b.end() - 2);
  if (elementCount(bBatch) == 1) {
    // One right operand for the whole batch: the batch joins the rows.
    p.a = {elementCount(aBatch) * m, k};
    p.b = {k, n};
  }
  size_t rank = std::max(p.a.size(), p.b.size());
  p.a = padded(p.a, rank);
  p.b = padded(p.b, rank);
  p.y.resize(rank);
  for (size_t d = 0; d + 2 < rank; ++d)
    p.y[d] = p.a[d] == 1 ? p.b[d] : p.a[d];
  p.y[rank - 2] = p.a[rank - 2];
  p.y[rank - 1] = n;
  return preferOwnType(spec, [&](DType type) { return makeProduct(spec, p, 1, {}, type); });
}

std::unique_ptr<Kernel> makeGemm(const StepSpec &spec) {
  Product p;
  p.transA = spec.attrs.getInt("transA", 0) != 0, p.transB = spec.attrs.getInt("transB", 0) != 0;
  p.y = spec.outputs[0].dims;
  int64_t k = spec.inputs[0].dims[p.transA ? 0 : 1];
  p.a = {p.y[0], k};
  p.b = {k, p.y[1]};
  Addend c{2, {}, static_cast<float>(spec.attrs.getFloat("beta", 1))};
  if (spec.inputs.size() > 2 && spec.inputs[2].present() && c.beta != 0)
    c.dims = padded(spec.inputs[2].dims, 2);
  float alpha = static_cast<float>(spec.attrs.getFloat("alpha", 1));
  return preferOwnType(spec, [&](DType type) { return makeProduct(spec, p, alpha, c, type); });
}

} // namespace recast::onednn
