// What ranks do together: all_reduce and rank, as programs of one rank among several. A process alone has the programs
// of the table.
#pragma once
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/plan/DType.h"

namespace recast::cuda {

/// The launch that sums over ranks, by the device's own library.
inline constexpr std::string_view kAllReduce = "nccl.all_reduce";

/// data[i] becomes the sum over all ranks; F32 or F64.
struct AllReduceArgs {
  void *data;
  int64_t count;
  DType type;
};

/// Of `ranks` processes this one is number `rank`.
struct RankPlace {
  int rank = 0, ranks = 1;
  size_t bucketBytes = 0; ///< Bytes that are reduced at a time, at most.
};

bool isCollective(const StepSpec &spec);

/// The program of all_reduce or rank among several ranks, or a refusal. Its workspace is a bucket, not the step's: how
/// large that is depends on the ranks, which a plan does not know. Operands go through the bucket one after the other,
/// f64 where an operand is, else f32; maxima go through one place for each rank, so that one sum is enough.
bool compileCollective(const StepSpec &spec, const RankPlace &place, Program &program, std::string &refusal);

} // namespace recast::cuda
