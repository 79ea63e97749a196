// What is declared of cuDNN against cudnn.h.
#include "runtime/device/cuda/Cudnn.cpp"
#include "SameCall.h"
#include <cudnn.h>

namespace recast::device {

RECAST_CUDNN_FUNCTIONS(RECAST_SAME_CALL, CudnnFunctions)
RECAST_CUDNN_DIRECTION(RECAST_SAME_CALL, ConvolutionFunctions, Forward)
RECAST_CUDNN_DIRECTION(RECAST_SAME_CALL, ConvolutionFunctions, BackwardData)
RECAST_CUDNN_DIRECTION(RECAST_SAME_CALL, ConvolutionFunctions, BackwardFilter)

template <typename Theirs>
constexpr bool sameAlgorithm = sizeof(ConvolutionAlgorithm) == sizeof(Theirs) &&
                               offsetof(ConvolutionAlgorithm, status) == offsetof(Theirs, status) &&
                               offsetof(ConvolutionAlgorithm, milliseconds) == offsetof(Theirs, time) &&
                               offsetof(ConvolutionAlgorithm, workspaceBytes) == offsetof(Theirs, memory) &&
                               offsetof(ConvolutionAlgorithm, determinism) == offsetof(Theirs, determinism) &&
                               offsetof(ConvolutionAlgorithm, math) == offsetof(Theirs, mathType);
static_assert(sameAlgorithm<cudnnConvolutionFwdAlgoPerf_t> && sameAlgorithm<cudnnConvolutionBwdDataAlgoPerf_t> &&
              sameAlgorithm<cudnnConvolutionBwdFilterAlgoPerf_t>);

static_assert(kChannelsFirst == CUDNN_TENSOR_NCHW && kCrossCorrelation == CUDNN_CROSS_CORRELATION);
static_assert(kF32 == CUDNN_DATA_FLOAT && kF16 == CUDNN_DATA_HALF && kBF16 == CUDNN_DATA_BFLOAT16);
static_assert(typeCode(DType::F16) == CUDNN_DATA_HALF && typeCode(DType::BF16) == CUDNN_DATA_BFLOAT16);
static_assert(kDeterministic == CUDNN_DETERMINISTIC);
static_assert(kDefaultMath == CUDNN_DEFAULT_MATH && kTensorOpMath == CUDNN_TENSOR_OP_MATH);
static_assert(kFmaMath == CUDNN_FMA_MATH);
static_assert(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM == 0 && CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM == 1 &&
              CUDNN_CONVOLUTION_FWD_ALGO_GEMM == 2);
static_assert(CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 == 1 && CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 == 1);

} // namespace recast::device
