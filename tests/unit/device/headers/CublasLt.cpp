// What is declared of cuBLASLt against cublasLt.h.
#include "runtime/device/cuda/CublasLt.cpp"
#include "SameCall.h"
#include <cublasLt.h>

namespace recast::device {

RECAST_CUBLASLT_FUNCTIONS(RECAST_SAME_CALL, CublasLtFunctions)

static_assert(sizeof(MatmulAlgorithm) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(sizeof(MatmulAlgorithm::algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(offsetof(MatmulAlgorithm, workspaceBytes) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(MatmulAlgorithm, status) == offsetof(cublasLtMatmulHeuristicResult_t, state));

static_assert(kTransA == CUBLASLT_MATMUL_DESC_TRANSA && kTransB == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(kEpilogue == CUBLASLT_MATMUL_DESC_EPILOGUE && kBiasPointer == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(kScaleA == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER && kScaleB == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
static_assert(kScaleD == CUBLASLT_MATMUL_DESC_D_SCALE_POINTER);
static_assert(kScaleModeA == CUBLASLT_MATMUL_DESC_A_SCALE_MODE && kScaleModeB == CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
static_assert(kBatchCount == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
static_assert(kBatchStride == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
static_assert(kMostWorkspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(kReductions == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
static_assert(kAlignmentA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(kAlignmentB == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(kAlignmentC == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(kAlignmentD == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(kReduceAsComputed == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
static_assert(kNotSupported == CUBLAS_STATUS_NOT_SUPPORTED);
static_assert(kTransposed == CUBLAS_OP_T && kEpilogueBias == CUBLASLT_EPILOGUE_BIAS);
static_assert(kComputeF32 == CUBLAS_COMPUTE_32F && kComputeTf32 == CUBLAS_COMPUTE_32F_FAST_TF32);
static_assert(kF32 == CUDA_R_32F);

constexpr int codeOf(cuda::ScaleMode mode) { return static_cast<int>(mode); }
static_assert(codeOf(cuda::ScaleMode::Scalar) == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
static_assert(codeOf(cuda::ScaleMode::Vector32E8M0) == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0);
static_assert(codeOf(cuda::ScaleMode::OuterVector) == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
static_assert(codeOf(cuda::ScaleMode::Vector128) == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
static_assert(codeOf(cuda::ScaleMode::Block128) == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);

static_assert(typeCode(DType::F16) == CUDA_R_16F && typeCode(DType::BF16) == CUDA_R_16BF);
static_assert(typeCode(DType::F8E4M3FN) == CUDA_R_8F_E4M3 && typeCode(DType::F8E5M2) == CUDA_R_8F_E5M2);

} // namespace recast::device
