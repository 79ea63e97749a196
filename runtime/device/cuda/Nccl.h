// NCCL, as far as it is used; opened at run time. Names and numbers are those of nccl.h (2.x).
#pragma once
#include "runtime/device/cuda/Driver.h"
#include "runtime/exec/Communicator.h"
#include "runtime/kernels/cuda/table/Collective.h"
#include <memory>

namespace recast::device {

struct NcclUniqueId {
  unsigned char bytes[128];
};

/// Functions return an ncclResult_t: 0 is success.
struct NcclFunctions {
  int (*getUniqueId)(NcclUniqueId *id);
  int (*commInitRank)(CudaHandle *communicator, int ranks, NcclUniqueId id, int rank);
  int (*allReduce)(const void *from, void *to, size_t count, int type, int operation, CudaHandle communicator,
                   CudaHandle stream);
  int (*commGetAsyncError)(CudaHandle communicator, int *result);
  int (*commAbort)(CudaHandle communicator);
  int (*commDestroy)(CudaHandle communicator);
  const char *(*getErrorString)(int result);
};
/// As RECAST_DRIVER_FUNCTIONS.
#define RECAST_NCCL_FUNCTIONS(Use, Table)                                                                              \
  Use(Table, getUniqueId, ncclGetUniqueId) Use(Table, commInitRank, ncclCommInitRank)                                  \
      Use(Table, allReduce, ncclAllReduce) Use(Table, commGetAsyncError, ncclCommGetAsyncError)                        \
          Use(Table, commAbort, ncclCommAbort) Use(Table, commDestroy, ncclCommDestroy)                                \
              Use(Table, getErrorString, ncclGetErrorString)
/// Opens libnccl.so.2.
Result<NcclFunctions> openNccl();

/// The devices of all ranks.
class Nccl {
public:
  /// All ranks call it together, each with its own device current; `ranks` tells them how to find each other.
  static Result<std::unique_ptr<Nccl>> create(const NcclFunctions &functions, Communicator &ranks);
  ~Nccl();

  Status allReduce(const cuda::AllReduceArgs &args, const std::string &step, CudaHandle stream);
  /// What went wrong beside the calls: a connection that was lost.
  Status check() const;
  /// Ends the sums that wait.
  void abort();

private:
  explicit Nccl(const NcclFunctions &functions) : nccl(functions) {}
  Status check(int result, const std::string &call) const;

  NcclFunctions nccl;
  CudaHandle communicator = nullptr;
};

} // namespace recast::device
