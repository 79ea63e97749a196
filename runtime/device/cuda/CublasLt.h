// cuBLASLt, as far as it is used; opened at run time. Names and numbers are those of cublasLt.h (CUDA 13).
#pragma once
#include "runtime/device/cuda/Driver.h"
#include "runtime/kernels/cuda/table/Matmul.h"
#include <map>
#include <memory>

namespace recast::device {

/// The heuristic's answer: cublasLtMatmulHeuristicResult_t.
struct MatmulAlgorithm {
  uint64_t algorithm[8];
  size_t workspaceBytes;
  int status;
  float waves;
  int reserved[4];
};

/// Functions return a cublasStatus_t: 0 is success.
struct CublasLtFunctions {
  int (*create)(CudaHandle *handle);
  int (*matmulDescCreate)(CudaHandle *desc, int computeType, int scaleType);
  int (*matmulDescSet)(CudaHandle desc, int attribute, const void *value, size_t bytes);
  int (*layoutCreate)(CudaHandle *layout, int type, uint64_t rows, uint64_t columns, int64_t leadingDimension);
  int (*layoutSet)(CudaHandle layout, int attribute, const void *value, size_t bytes);
  int (*preferenceCreate)(CudaHandle *preference);
  int (*preferenceSet)(CudaHandle preference, int attribute, const void *value, size_t bytes);
  int (*heuristic)(CudaHandle handle, CudaHandle desc, CudaHandle a, CudaHandle b, CudaHandle c, CudaHandle d,
                   CudaHandle preference, int wanted, MatmulAlgorithm *results, int *found);
  int (*matmul)(CudaHandle handle, CudaHandle desc, const void *alpha, const void *a, CudaHandle layoutA, const void *b,
                CudaHandle layoutB, const void *beta, const void *c, CudaHandle layoutC, void *d, CudaHandle layoutD,
                const void *algorithm, void *workspace, size_t workspaceBytes, CudaHandle stream);
};
/// As RECAST_DRIVER_FUNCTIONS.
#define RECAST_CUBLASLT_FUNCTIONS(Use, Table)                                                                          \
  Use(Table, create, cublasLtCreate) Use(Table, matmulDescCreate, cublasLtMatmulDescCreate)                            \
      Use(Table, matmulDescSet, cublasLtMatmulDescSetAttribute) Use(Table, layoutCreate, cublasLtMatrixLayoutCreate)   \
          Use(Table, layoutSet, cublasLtMatrixLayoutSetAttribute)                                                      \
              Use(Table, preferenceCreate, cublasLtMatmulPreferenceCreate)                                             \
                  Use(Table, preferenceSet, cublasLtMatmulPreferenceSetAttribute)                                      \
                      Use(Table, heuristic, cublasLtMatmulAlgoGetHeuristic) Use(Table, matmul, cublasLtMatmul)
/// Opens libcublasLt.so.13.
Result<CublasLtFunctions> openCublasLt();

class CublasLt {
public:
  static Result<std::unique_ptr<CublasLt>> create(const CublasLtFunctions &functions);
  /// Precondition: brokenRule(args) is "". The algorithm of a call is chosen once and then kept.
  Status matmul(const cuda::MatmulArgs &args, const std::string &step, CudaHandle stream);

private:
  /// A call made ready, without addresses.
  struct Prepared {
    CudaHandle desc = nullptr, a = nullptr, b = nullptr, d = nullptr;
    MatmulAlgorithm algorithm{};
  };
  explicit CublasLt(const CublasLtFunctions &functions) : lt(functions) {}
  Status prepare(const cuda::MatmulArgs &args, Prepared &prepared);
  Status setPointers(const cuda::MatmulArgs &args, CudaHandle desc) const;

  CublasLtFunctions lt;
  CudaHandle handle = nullptr;
  std::map<std::string, Prepared> calls; ///< By their sizes and types.
};

} // namespace recast::device
