#include "runtime/device/cuda/CublasLt.h"
#include "runtime/device/cuda/Library.h"
#include <cstring>

namespace recast::device {
namespace {

// cublasLtMatmulDescAttributes_t, cublasLtMatrixLayoutAttribute_t, cublasLtMatmulPreferenceAttributes_t.
constexpr int kTransA = 3, kTransB = 4, kEpilogue = 7, kBiasPointer = 8, kScaleA = 17, kScaleB = 18, kScaleD = 20;
constexpr int kScaleModeA = 31, kScaleModeB = 32;
constexpr int kBatchCount = 5, kBatchStride = 6;
constexpr int kMostWorkspace = 1, kReductions = 3;
constexpr int kAlignmentA = 5, kAlignmentB = 6, kAlignmentC = 7, kAlignmentD = 8;
constexpr uint32_t kReduceAsComputed = 2; // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
constexpr int kNotSupported = 15;         // CUBLAS_STATUS_NOT_SUPPORTED
constexpr int32_t kTransposed = 1;        // CUBLAS_OP_T
constexpr uint32_t kEpilogueBias = 4;
// CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F.
constexpr int kComputeF32 = 68, kComputeTf32 = 77, kF32 = 0;

/// cudaDataType.
constexpr int typeCode(DType type) {
  switch (type) {
  case DType::F16:
    return 2;
  case DType::BF16:
    return 14;
  case DType::F8E4M3FN:
    return 28;
  case DType::F8E5M2:
    return 29;
  default:
    return kF32;
  }
}

Status check(int status, const char *call) {
  return status == 0 ? Status::success()
                     : Status::error(std::string(call) + " returned the status " + std::to_string(status));
}

/// What the library knows of where an operand lies: bytes that its address is a multiple of. Algorithms want no more
/// than the 256 that it takes for granted where nothing is said.
uint32_t alignmentOf(const void *address) {
  auto bits = reinterpret_cast<uintptr_t>(address) | 256;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

/// The call without its addresses, but for their alignment: what an algorithm is chosen by.
std::string keyOf(cuda::MatmulArgs args) {
  bool hasBias = args.bias != nullptr;
  std::string alignments;
  for (const void *address : {args.a, args.b, static_cast<const void *>(args.d)})
    alignments += " " + std::to_string(alignmentOf(address));
  args.a = args.b = args.bias = args.scaleA = args.scaleB = args.scaleD = nullptr;
  args.d = args.workspace = nullptr;
  args.alpha = args.beta = 0;
  std::string key(reinterpret_cast<const char *>(&args), sizeof(args));
  return key + (hasBias ? 'b' : '-') + alignments;
}

} // namespace

#define RECAST_TRY(Call)                                                                                               \
  if (Status status = check(Call, #Call); !status.ok())                                                                \
    return status;

Result<CublasLtFunctions> openCublasLt() {
  Result<Library> opened =
      Library::open({"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}, "cuBLASLt of CUDA 13 or 12");
  if (!opened)
    return Status::error(opened.message() + ": install it, or add its folder to LD_LIBRARY_PATH");
  const Library &library = *opened;
  CublasLtFunctions lt{};
  RECAST_CUBLASLT_FUNCTIONS(RECAST_FIND, lt)
  return lt;
}

Result<std::unique_ptr<CublasLt>> CublasLt::create(const CublasLtFunctions &functions) {
  std::unique_ptr<CublasLt> library(new CublasLt(functions));
  RECAST_TRY(functions.create(&library->handle))
  return std::move(library);
}

/// cuBLASLt's matrices are column-major: a row-major d = op(a) op(b) is its dᵀ = op(b)ᵀ op(a)ᵀ, and a row-major matrix
/// is the column-major transposed one as it lies. So its A is our b, its B our a, rows are columns, and what is
/// transposed stays so.
Status CublasLt::prepare(const cuda::MatmulArgs &args, Prepared &prepared) {
  RECAST_TRY(lt.matmulDescCreate(&prepared.desc, args.tf32 ? kComputeTf32 : kComputeF32, kF32))
  if (args.transB)
    RECAST_TRY(lt.matmulDescSet(prepared.desc, kTransA, &kTransposed, sizeof(kTransposed)))
  if (args.transA)
    RECAST_TRY(lt.matmulDescSet(prepared.desc, kTransB, &kTransposed, sizeof(kTransposed)))
  if (args.bias)
    RECAST_TRY(lt.matmulDescSet(prepared.desc, kEpilogue, &kEpilogueBias, sizeof(kEpilogueBias)))
  // One scale a tensor is the default, and all that versions before 12.8 know.
  if (isFloat8(args.typeA) && args.scaleModeA != cuda::ScaleMode::Scalar) {
    auto modeA = static_cast<int32_t>(args.scaleModeB), modeB = static_cast<int32_t>(args.scaleModeA);
    RECAST_TRY(lt.matmulDescSet(prepared.desc, kScaleModeA, &modeA, sizeof(modeA)))
    RECAST_TRY(lt.matmulDescSet(prepared.desc, kScaleModeB, &modeB, sizeof(modeB)))
  }
  // Which there are says what the algorithm must do.
  if (Status status = setPointers(args, prepared.desc); !status.ok())
    return status;
  auto layout = [&](CudaHandle &to, DType type, int64_t rows, int64_t columns, int64_t pitch, int64_t stride) {
    RECAST_TRY(lt.layoutCreate(&to, typeCode(type), static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), pitch))
    auto batch = static_cast<int32_t>(args.batch);
    RECAST_TRY(lt.layoutSet(to, kBatchCount, &batch, sizeof(batch)))
    RECAST_TRY(lt.layoutSet(to, kBatchStride, &stride, sizeof(stride)))
    return Status::success();
  };
  for (Status status : {layout(prepared.a, args.typeB, args.transB ? args.k : args.n, args.transB ? args.n : args.k,
                               args.pitchB, args.strideB),
                        layout(prepared.b, args.typeA, args.transA ? args.m : args.k, args.transA ? args.k : args.m,
                               args.pitchA, args.strideA),
                        layout(prepared.d, args.typeD, args.n, args.m, args.pitchD, args.strideD)})
    if (!status.ok())
      return status;
  CudaHandle preference = nullptr;
  RECAST_TRY(lt.preferenceCreate(&preference))
  auto workspace = static_cast<uint64_t>(args.workspaceBytes);
  RECAST_TRY(lt.preferenceSet(preference, kMostWorkspace, &workspace, sizeof(workspace)))
  // Parts of a sum that is split are added in fp32, and not in the type of the result.
  RECAST_TRY(lt.preferenceSet(preference, kReductions, &kReduceAsComputed, sizeof(kReduceAsComputed)))
  for (auto [attribute, address] : {std::pair<int, const void *>{kAlignmentA, args.b},
                                    {kAlignmentB, args.a},
                                    {kAlignmentC, args.d},
                                    {kAlignmentD, args.d}}) {
    uint32_t alignment = alignmentOf(address);
    RECAST_TRY(lt.preferenceSet(preference, attribute, &alignment, sizeof(alignment)))
  }
  int found = 0;
  int answer = lt.heuristic(handle, prepared.desc, prepared.a, prepared.b, prepared.d, prepared.d, preference, 1,
                            &prepared.algorithm, &found);
  if (answer == 0 && found && prepared.algorithm.status == 0)
    return Status::success();
  if (answer != 0 && answer != kNotSupported)
    return check(answer, "cublasLtMatmulAlgoGetHeuristic");
  return Status::error(std::string("cuBLASLt has no algorithm for the product") +
                       (isFloat8(args.typeA) ? " of 8-bit floats; a plan for --cuda-arch=sm_80 does without" : ""));
}

Status CublasLt::setPointers(const cuda::MatmulArgs &args, CudaHandle desc) const {
  for (auto [attribute, address] : {std::pair<int, const void *>{kBiasPointer, args.bias},
                                    {kScaleA, args.scaleB},
                                    {kScaleB, args.scaleA},
                                    {kScaleD, args.scaleD}})
    if (address)
      RECAST_TRY(lt.matmulDescSet(desc, attribute, &address, sizeof(address)))
  return Status::success();
}

Status CublasLt::matmul(const cuda::MatmulArgs &args, const std::string &step, CudaHandle stream) {
  auto [found, isNew] = calls.try_emplace(keyOf(args));
  Prepared &prepared = found->second;
  if (isNew)
    if (Status status = prepare(args, prepared); !status.ok()) {
      calls.erase(found);
      return Status::error(step + ": " + status.message());
    }
  if (Status status = setPointers(args, prepared.desc); !status.ok())
    return Status::error(step + ": " + status.message());
  auto alpha = static_cast<float>(args.alpha), beta = static_cast<float>(args.beta);
  Status status =
      check(lt.matmul(handle, prepared.desc, &alpha, args.b, prepared.a, args.a, prepared.b, &beta, args.d, prepared.d,
                      args.d, prepared.d, &prepared.algorithm.algorithm, args.workspace, args.workspaceBytes, stream),
            "cublasLtMatmul");
  return status.ok() ? status : Status::error(step + ": " + status.message());
}

} // namespace recast::device
