#include "tests/unit/device/FakeCudnn.h"
#include <algorithm>
#include <array>
#include <deque>
#include <gtest/gtest.h>
#include <numeric>

namespace recast::device::test {
namespace {

using Ints = std::vector<int>;

FakeCudnn *fake;

/// A descriptor of any kind; numbers are cuDNN's.
struct Descriptor {
  enum Kind { Tensor, Filter, Convolution } kind = Tensor;
  int type = -1;
  Ints dims, strides;
  Ints pads, steps, dilations;
  int groups = 0, math = -1;
};
std::deque<Descriptor> descriptors;
Descriptor &at(CudaHandle handle) { return descriptors[reinterpret_cast<uintptr_t>(handle) - 1]; }
template <Descriptor::Kind kind> int createDescriptor(CudaHandle *handle) {
  descriptors.emplace_back().kind = kind;
  *handle = reinterpret_cast<CudaHandle>(descriptors.size());
  return 0;
}

const CudaHandle kLibrary = reinterpret_cast<CudaHandle>(uintptr_t(7));
CudaHandle current; ///< The library's stream.

double load(const void *data, int type, size_t i) {
  switch (type) {
  case 2:
    return static_cast<double>(static_cast<float>(static_cast<const Half *>(data)[i]));
  case 9:
    return static_cast<double>(static_cast<float>(static_cast<const BFloat16 *>(data)[i]));
  default:
    return static_cast<double>(static_cast<const float *>(data)[i]);
  }
}
void store(void *data, int type, size_t i, double value) {
  auto rounded = static_cast<float>(value);
  if (type == 2)
    static_cast<Half *>(data)[i] = Half(rounded);
  else if (type == 9)
    static_cast<BFloat16 *>(data)[i] = BFloat16(rounded);
  else
    static_cast<float *>(data)[i] = rounded;
}

/// x, w and y of a call, in this order.
struct Operands {
  const Descriptor *x, *w, *y;
};
template <int direction> Operands operandsOf(CudaHandle first, CudaHandle second, CudaHandle result) {
  if constexpr (direction == 0)
    return {&at(first), &at(second), &at(result)};
  else if constexpr (direction == 1)
    return {&at(result), &at(first), &at(second)};
  else
    return {&at(first), &at(result), &at(second)};
}

/// The rules of cudnnConvolutionForward() and its gradients.
void expectFits(const Operands &o, const Descriptor &how) {
  ASSERT_EQ(o.x->kind, Descriptor::Tensor);
  ASSERT_EQ(o.w->kind, Descriptor::Filter);
  ASSERT_EQ(o.y->kind, Descriptor::Tensor);
  ASSERT_EQ(how.kind, Descriptor::Convolution);
  EXPECT_TRUE(o.x->type == o.w->type && o.w->type == o.y->type);
  size_t rank = o.x->dims.size();
  ASSERT_TRUE(rank == 4 || rank == 5) << "no tensors of two or three spatial axes";
  ASSERT_EQ(o.w->dims.size(), rank);
  ASSERT_EQ(o.y->dims.size(), rank);
  ASSERT_EQ(how.pads.size(), rank - 2);
  EXPECT_GE(how.math, 0) << "cudnnSetConvolutionMathType was not called";
  ASSERT_GE(how.groups, 1) << "cudnnSetConvolutionGroupCount was not called";
  EXPECT_EQ(o.x->dims[0], o.y->dims[0]);
  EXPECT_EQ(o.x->dims[1], o.w->dims[1] * how.groups);
  EXPECT_EQ(o.y->dims[1], o.w->dims[0]);
  EXPECT_EQ(o.w->dims[0] % how.groups, 0);
  for (size_t d = 0; d + 2 < rank; ++d)
    EXPECT_EQ(o.y->dims[d + 2],
              1 + (o.x->dims[d + 2] + 2 * how.pads[d] - ((o.w->dims[d + 2] - 1) * how.dilations[d] + 1)) /
                      how.steps[d]);
}

/// Calls visit(index) for all of the coordinates below `dims`.
void forEach(const Ints &dims, const std::function<void(const Ints &)> &visit) {
  Ints index(dims.size());
  for (int count = std::accumulate(dims.begin(), dims.end(), 1, std::multiplies<>()); count-- > 0;) {
    visit(index);
    for (size_t d = dims.size(); d-- > 0;) {
      if (++index[d] < dims[d])
        break;
      index[d] = 0;
    }
  }
}
size_t offset(const Descriptor &tensor, const Ints &index) {
  return static_cast<size_t>(std::inner_product(index.begin(), index.end(), tensor.strides.begin(), 0));
}

template <int direction>
void compute(const Operands &o, const Descriptor &how, const void *first, const void *second, void *result) {
  const Descriptor &to = direction == 0 ? *o.y : direction == 1 ? *o.x : *o.w;
  std::vector<double> sums(
      static_cast<size_t>(std::accumulate(to.dims.begin(), to.dims.end(), 1, std::multiplies<>())));
  forEach(o.y->dims, [&](const Ints &y) {
    forEach(o.w->dims, [&](Ints w) {
      if (w[0] != 0) // Only this output channel's weights.
        return;
      w[0] = y[1];
      Ints x = {y[0], y[1] / (o.w->dims[0] / how.groups) * o.w->dims[1] + w[1]};
      for (size_t d = 0; d + 2 < y.size(); ++d) {
        x.push_back(y[d + 2] * how.steps[d] - how.pads[d] + w[d + 2] * how.dilations[d]);
        if (x.back() < 0 || x.back() >= o.x->dims[d + 2])
          return;
      }
      size_t places[] = {offset(*o.x, x), offset(*o.w, w), offset(*o.y, y)};
      auto [a, b, r] = direction == 0   ? std::array<size_t, 3>{places[0], places[1], places[2]}
                       : direction == 1 ? std::array<size_t, 3>{places[1], places[2], places[0]}
                                        : std::array<size_t, 3>{places[0], places[2], places[1]};
      sums[r] += load(first, to.type, a) * load(second, to.type, b);
    });
  });
  for (size_t i = 0; i < sums.size(); ++i)
    store(result, to.type, i, sums[i]);
}

template <int direction> ConvolutionFunctions functions() {
  ConvolutionFunctions f{};
  f.algorithms = [](CudaHandle handle, CudaHandle first, CudaHandle second, CudaHandle convolution, CudaHandle result,
                    int wanted, int *found, ConvolutionAlgorithm *results) {
    EXPECT_EQ(handle, kLibrary);
    expectFits(operandsOf<direction>(first, second, result), at(convolution));
    ++fake->choices;
    const std::vector<ConvolutionAlgorithm> &all = fake->suggestions[direction];
    *found = std::min(wanted, static_cast<int>(all.size()));
    std::copy_n(all.begin(), *found, results);
    return 0;
  };
  f.workspaceSize = [](CudaHandle, CudaHandle first, CudaHandle second, CudaHandle convolution, CudaHandle result,
                       int algorithm, size_t *bytes) {
    expectFits(operandsOf<direction>(first, second, result), at(convolution));
    for (const ConvolutionAlgorithm &suggestion : fake->suggestions[direction])
      if (suggestion.algorithm == algorithm)
        return *bytes = suggestion.workspaceBytes, 0;
    return 3000; // CUDNN_STATUS_NOT_SUPPORTED
  };
  f.run = [](CudaHandle handle, const void *alpha, CudaHandle firstDesc, const void *first, CudaHandle secondDesc,
             const void *second, CudaHandle convolution, int algorithm, void *workspace, size_t workspaceBytes,
             const void *beta, CudaHandle resultDesc, void *result) {
    EXPECT_EQ(handle, kLibrary);
    EXPECT_EQ(*static_cast<const float *>(alpha), 1);
    EXPECT_EQ(*static_cast<const float *>(beta), 0);
    Operands operands = operandsOf<direction>(firstDesc, secondDesc, resultDesc);
    Descriptor how = at(convolution);
    expectFits(operands, how);
    for (const ConvolutionAlgorithm &suggestion : fake->suggestions[direction])
      if (suggestion.algorithm == algorithm) {
        EXPECT_LE(suggestion.workspaceBytes, workspaceBytes);
        EXPECT_TRUE(workspace || suggestion.workspaceBytes == 0);
      }
    if (std::ranges::find(fake->refused, algorithm) != fake->refused.end())
      return 3000; // CUDNN_STATUS_NOT_SUPPORTED
    fake->algorithms.push_back(algorithm);
    fake->maths.push_back(how.math);
    return fake->perform(current, [=] { compute<direction>(operands, how, first, second, result); });
  };
  return f;
}

} // namespace

FakeCudnn::FakeCudnn() {
  auto add = [&](int direction, int algorithm, bool isDeterministic, size_t bytes, int status = 0) {
    for (int math : {1, 0}) // CUDNN_TENSOR_OP_MATH, CUDNN_DEFAULT_MATH
      suggestions[direction].push_back({algorithm, status, 1, bytes, isDeterministic, math, {}});
  };
  add(0, 6, true, 4096), add(0, 1, true, 512), add(0, 0, true, 0), add(0, 4, true, 0, 3000);
  add(1, 4, true, 4096), add(1, 0, false, 0), add(1, 1, true, 256);
  add(2, 3, false, 128), add(2, 0, false, 0), add(2, 1, true, 1024), add(2, 5, true, 8192);
  perform = [](CudaHandle, std::function<void()> work) { return work(), 0; };
}

CudnnFunctions fakeCudnn(FakeCudnn &state) {
  fake = &state;
  CudnnFunctions dnn{};
  dnn.getErrorString = [](int status) { return status == 1001 ? "not initialised" : "not supported"; };
  dnn.create = [](CudaHandle *handle) {
    current = nullptr;
    return *handle = kLibrary, fake->isBroken ? 1001 : 0;
  };
  dnn.setStream = [](CudaHandle handle, CudaHandle stream) {
    EXPECT_EQ(handle, kLibrary);
    return current = stream, 0;
  };
  dnn.tensorCreate = createDescriptor<Descriptor::Tensor>;
  dnn.filterCreate = createDescriptor<Descriptor::Filter>;
  dnn.convolutionCreate = createDescriptor<Descriptor::Convolution>;
  dnn.tensorSet = [](CudaHandle tensor, int type, int rank, const int *dims, const int *strides) {
    Descriptor &d = at(tensor);
    d.type = type, d.dims.assign(dims, dims + rank), d.strides.assign(strides, strides + rank);
    return 0;
  };
  dnn.filterSet = [](CudaHandle filter, int type, int format, int rank, const int *dims) {
    EXPECT_EQ(format, 0) << "CUDNN_TENSOR_NCHW";
    Descriptor &d = at(filter);
    d.type = type, d.dims.assign(dims, dims + rank), d.strides.assign(static_cast<size_t>(rank), 1);
    for (size_t i = d.dims.size() - 1; i-- > 0;)
      d.strides[i] = d.strides[i + 1] * d.dims[i + 1];
    return 0;
  };
  dnn.convolutionSet = [](CudaHandle convolution, int axes, const int *pads, const int *strides, const int *dilations,
                          int mode, int computeType) {
    EXPECT_EQ(mode, 1) << "CUDNN_CROSS_CORRELATION";
    EXPECT_EQ(computeType, 0) << "CUDNN_DATA_FLOAT";
    Descriptor &d = at(convolution);
    d.pads.assign(pads, pads + axes), d.steps.assign(strides, strides + axes);
    d.dilations.assign(dilations, dilations + axes);
    return 0;
  };
  dnn.groupsSet = [](CudaHandle convolution, int groups) { return at(convolution).groups = groups, 0; };
  dnn.mathSet = [](CudaHandle convolution, int math) { return at(convolution).math = math, 0; };
  dnn.directions[0] = functions<0>(), dnn.directions[1] = functions<1>(), dnn.directions[2] = functions<2>();
  return dnn;
}

} // namespace recast::device::test
