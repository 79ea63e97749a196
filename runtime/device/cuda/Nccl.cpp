#include "runtime/device/cuda/Nccl.h"
#include "runtime/device/cuda/Library.h"
#include <cstring>

namespace recast::device {
namespace {

constexpr int kF32 = 7, kF64 = 8, kSum = 0; // ncclFloat32, ncclFloat64, ncclSum.

/// Rank 0's bytes on all ranks: the others add zeros.
Status broadcast(NcclUniqueId &id, Communicator &ranks) {
  float values[sizeof(id.bytes)];
  for (size_t i = 0; i < sizeof(id.bytes); ++i)
    values[i] = ranks.rank() == 0 ? id.bytes[i] : 0;
  if (Status status = ranks.sum(values, sizeof(id.bytes)); !status.ok())
    return status;
  for (size_t i = 0; i < sizeof(id.bytes); ++i)
    id.bytes[i] = static_cast<unsigned char>(values[i]);
  return Status::success();
}

} // namespace

Result<NcclFunctions> openNccl() {
  Result<Library> opened =
      Library::open({"libnccl.so.2", "libnccl.so"}, "NCCL, which brings the GPUs of ranks together,");
  if (!opened)
    return Status::error(opened.message() + ": install it, or add its folder to LD_LIBRARY_PATH");
  const Library &library = *opened;
  NcclFunctions nccl{};
  RECAST_NCCL_FUNCTIONS(RECAST_FIND, nccl)
  return nccl;
}

Status Nccl::check(int result, const std::string &call) const {
  return result == 0 ? Status::success() : Status::error(call + ": " + nccl.getErrorString(result));
}

Result<std::unique_ptr<Nccl>> Nccl::create(const NcclFunctions &functions, Communicator &ranks) {
  std::unique_ptr<Nccl> made(new Nccl(functions));
  NcclUniqueId id{};
  if (ranks.rank() == 0)
    if (Status status = made->check(functions.getUniqueId(&id), "ncclGetUniqueId"); !status.ok())
      return status;
  if (Status status = broadcast(id, ranks); !status.ok())
    return status;
  if (Status status = made->check(functions.commInitRank(&made->communicator, ranks.size(), id, ranks.rank()),
                                  "ncclCommInitRank of rank " + std::to_string(ranks.rank()));
      !status.ok())
    return status;
  return std::move(made);
}

Nccl::~Nccl() {
  if (communicator)
    nccl.commDestroy(communicator);
}

Status Nccl::allReduce(const cuda::AllReduceArgs &args, const std::string &step, CudaHandle stream) {
  return check(nccl.allReduce(args.data, args.data, static_cast<size_t>(args.count),
                              args.type == DType::F64 ? kF64 : kF32, kSum, communicator, stream),
               "ncclAllReduce for " + step);
}

Status Nccl::check() const {
  int result = 0;
  if (Status status = check(nccl.commGetAsyncError(communicator, &result), "ncclCommGetAsyncError"); !status.ok())
    return status;
  return check(result, "ncclAllReduce");
}

void Nccl::abort() {
  if (communicator)
    nccl.commAbort(communicator);
  communicator = nullptr;
}

} // namespace recast::device
