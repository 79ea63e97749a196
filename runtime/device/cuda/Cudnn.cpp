#include "runtime/device/cuda/Cudnn.h"
#include "runtime/device/cuda/Library.h"
#include <algorithm>
#include <span>

namespace recast::device {
namespace {

using cuda::ConvolutionCall;
using cuda::ConvolutionResult;

// cudnnTensorFormat_t, cudnnConvolutionMode_t, cudnnDataType_t, cudnnDeterminism_t, cudnnMathType_t.
constexpr int kChannelsFirst = 0, kCrossCorrelation = 1; // CUDNN_TENSOR_NCHW, CUDNN_CROSS_CORRELATION.
constexpr int kF32 = 0, kF16 = 2, kBF16 = 9;
constexpr int kDeterministic = 1;
constexpr int kDefaultMath = 0, kTensorOpMath = 1, kFmaMath = 3;
/// More than any direction has algorithms.
constexpr int kMostAlgorithms = 16;

struct NamedAlgorithm {
  int number;
  const char *name;
};
/// Those that may be chosen: the products and sums of the definition, deterministic by "Reproducibility (Determinism)"
/// of the developer guide, which names BWD_FILTER_ALGO_0 and _3 and BWD_DATA_ALGO_0 as those that are not.
std::span<const NamedAlgorithm> allowedAlgorithms(ConvolutionResult of) {
  static constexpr NamedAlgorithm forward[] = {{0, "IMPLICIT_GEMM"}, {1, "IMPLICIT_PRECOMP_GEMM"}, {2, "GEMM"}};
  static constexpr NamedAlgorithm data[] = {{1, "BWD_DATA_ALGO_1"}}, filter[] = {{1, "BWD_FILTER_ALGO_1"}};
  if (of == ConvolutionResult::Output)
    return forward;
  return of == ConvolutionResult::Input ? std::span<const NamedAlgorithm>(data) : filter;
}

constexpr int typeCode(DType type) { return type == DType::F16 ? kF16 : type == DType::BF16 ? kBF16 : kF32; }

/// CUDNN_DEFAULT_MATH turns f32 into tf32 where the device can; CUDNN_FMA_MATH never does.
int mathOf(const ConvolutionCall &call) {
  return call.type != DType::F32 ? kTensorOpMath : call.tf32 ? kDefaultMath : kFmaMath;
}

std::vector<int> packedStrides(const std::vector<int> &dims) {
  std::vector<int> strides(dims.size());
  int stride = 1;
  for (size_t d = dims.size(); d-- > 0; stride *= dims[d])
    strides[d] = stride;
  return strides;
}

/// The call without its addresses: what an algorithm is chosen by.
std::string keyOf(const ConvolutionCall &call) {
  std::string key;
  auto add = [&](int64_t value) { key += std::to_string(value) + " "; };
  const cuda::WindowArgs &w = call.window;
  for (const cuda::Axes *axes : {&w.in, &w.out, &w.kernel, &w.stride, &w.dilation, &w.padBegin})
    for (int64_t value : axes->values)
      add(value);
  for (int64_t value : {call.n, call.c, call.m, call.group, static_cast<int64_t>(call.workspaceBytes),
                        static_cast<int64_t>(call.type), static_cast<int64_t>(call.of), int64_t(call.tf32)})
    add(value);
  return key;
}

} // namespace

#define RECAST_TRY(Call)                                                                                               \
  if (Status status = check(Call, #Call); !status.ok())                                                                \
    return status;

Result<CudnnFunctions> openCudnn() {
  Result<Library> opened = Library::open({"libcudnn.so.9"}, "cuDNN 9");
  if (!opened)
    return Status::error(opened.message() + ": install it, or add its folder to LD_LIBRARY_PATH");
  const Library &library = *opened;
  CudnnFunctions dnn{};
  RECAST_CUDNN_FUNCTIONS(RECAST_FIND, dnn)
  auto &[forward, data, filter] = dnn.directions;
  RECAST_CUDNN_DIRECTION(RECAST_FIND, forward, Forward)
  RECAST_CUDNN_DIRECTION(RECAST_FIND, data, BackwardData)
  RECAST_CUDNN_DIRECTION(RECAST_FIND, filter, BackwardFilter)
  return dnn;
}

Status Cudnn::check(int status, const char *call) const {
  return status == 0 ? Status::success() : Status::error(std::string(call) + ": " + dnn.getErrorString(status));
}

Result<std::unique_ptr<Cudnn>> Cudnn::create(const CudnnFunctions &functions) {
  std::unique_ptr<Cudnn> made(new Cudnn(functions));
  if (Status status = made->check(functions.create(&made->handle), "cudnnCreate"); !status.ok())
    return status;
  return std::move(made);
}

/// Descriptors, which live as long as the process.
Status Cudnn::describe(const ConvolutionCall &call, Prepared &prepared) const {
  cuda::ConvolutionDims dims = cuda::dimsOf(call);
  auto tensor = [&](CudaHandle &made, const std::vector<int> &sizes) {
    RECAST_TRY(dnn.tensorCreate(&made))
    return check(dnn.tensorSet(made, typeCode(call.type), static_cast<int>(sizes.size()), sizes.data(),
                               packedStrides(sizes).data()),
                 "cudnnSetTensorNdDescriptor");
  };
  CudaHandle x = nullptr, w = nullptr, y = nullptr;
  for (Status status : {tensor(x, dims.x), tensor(y, dims.y)})
    if (!status.ok())
      return status;
  RECAST_TRY(dnn.filterCreate(&w))
  RECAST_TRY(dnn.filterSet(w, typeCode(call.type), kChannelsFirst, static_cast<int>(dims.w.size()), dims.w.data()))
  int axes = cuda::spatialAxes(call.window);
  auto last = [&](const cuda::Axes &values) { return std::vector<int>(values.values + 3 - axes, values.values + 3); };
  const cuda::WindowArgs &window = call.window;
  RECAST_TRY(dnn.convolutionCreate(&prepared.convolution))
  RECAST_TRY(dnn.convolutionSet(prepared.convolution, axes, last(window.padBegin).data(), last(window.stride).data(),
                                last(window.dilation).data(), kCrossCorrelation, kF32))
  RECAST_TRY(dnn.groupsSet(prepared.convolution, static_cast<int>(call.group)))
  RECAST_TRY(dnn.mathSet(prepared.convolution, mathOf(call)))
  prepared.first = call.of == ConvolutionResult::Input ? w : x;
  prepared.second = call.of == ConvolutionResult::Output ? w : y;
  prepared.result = call.of == ConvolutionResult::Output ? y : call.of == ConvolutionResult::Input ? x : w;
  return Status::success();
}

/// The first of the library's suggestions, which begin with the fastest, that may be taken, fits the workspace, and
/// runs: a suggestion is no promise.
Status Cudnn::choose(const ConvolutionCall &call, Prepared &prepared) const {
  const ConvolutionFunctions &direction = dnn.directions[static_cast<int>(call.of)];
  ConvolutionAlgorithm suggestions[kMostAlgorithms] = {};
  int found = 0;
  RECAST_TRY(direction.algorithms(handle, prepared.first, prepared.second, prepared.convolution, prepared.result,
                                  kMostAlgorithms, &found, suggestions))
  for (const ConvolutionAlgorithm &suggestion : std::span(suggestions, static_cast<size_t>(found))) {
    std::span<const NamedAlgorithm> allowed = allowedAlgorithms(call.of);
    auto named = std::ranges::find(allowed, suggestion.algorithm, &NamedAlgorithm::number);
    if (suggestion.status != 0 || suggestion.determinism != kDeterministic || named == allowed.end())
      continue;
    // A suggestion is an algorithm with a kind of arithmetic; of plain f32 there is one kind.
    RECAST_TRY(dnn.mathSet(prepared.convolution, mathOf(call) == kFmaMath ? kFmaMath : suggestion.math))
    size_t bytes = 0;
    if (direction.workspaceSize(handle, prepared.first, prepared.second, prepared.convolution, prepared.result,
                                suggestion.algorithm, &bytes) != 0 ||
        bytes > call.workspaceBytes)
      continue;
    prepared.algorithm = suggestion.algorithm;
    if (call.result && run(call, prepared) != 0)
      continue;
    prepared.choice = std::string("cuDNN's ") + named->name + " with " + std::to_string(bytes) + " of " +
                      std::to_string(call.workspaceBytes) + " bytes of workspace";
    return Status::success();
  }
  return Status::error("cuDNN has no deterministic algorithm for it within " + std::to_string(call.workspaceBytes) +
                       " bytes of workspace");
}

Result<std::string> Cudnn::prepare(const ConvolutionCall &call) {
  auto [found, isNew] = calls.try_emplace(keyOf(call));
  if (isNew) {
    Status status = describe(call, found->second);
    if (status.ok())
      status = choose(call, found->second);
    if (!status.ok()) {
      calls.erase(found);
      return status;
    }
  }
  return found->second.choice;
}

int Cudnn::run(const ConvolutionCall &call, const Prepared &prepared) const {
  bool isTurned = call.of == ConvolutionResult::Input; // The library takes w first.
  const float one = 1, zero = 0;
  return dnn.directions[static_cast<int>(call.of)].run(handle, &one, prepared.first, isTurned ? call.b : call.a,
                                                       prepared.second, isTurned ? call.a : call.b,
                                                       prepared.convolution, prepared.algorithm, call.workspace,
                                                       call.workspaceBytes, &zero, prepared.result, call.result);
}

Status Cudnn::convolve(const ConvolutionCall &call, const std::string &step, CudaHandle stream) {
  auto found = calls.find(keyOf(call));
  if (found == calls.end())
    return Status::error(step + ": its convolution was not prepared");
  Status status = check(dnn.setStream(handle, stream), "cudnnSetStream");
  if (status.ok())
    status = check(run(call, found->second), "cuDNN's convolution");
  return status.ok() ? status : Status::error(step + ": " + status.message());
}

} // namespace recast::device
