// The module that links MPI.
#include "runtime/ranks/Module.h"
#include <algorithm>
#include <climits>
#include <mpi.h>

namespace recast {

namespace {

std::string textOf(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

class MpiCommunicator final : public Communicator {
public:
  MpiCommunicator(MPI_Comm world, bool isSerialized) : world(world), isSerialized(isSerialized) {
    MPI_Comm_rank(world, &ownRank);
    MPI_Comm_size(world, &ranks);
    MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
  }
  ~MpiCommunicator() override {
    if (!isAborted)
      MPI_Finalize();
  }

  Status sum(float *data, size_t count) override { return sum(data, count, MPI_FLOAT); }
  Status sum(double *data, size_t count) override { return sum(data, count, MPI_DOUBLE); }
  bool worksOnThreads() const override { return isSerialized; }
  void abort() override {
    isAborted = true;
    MPI_Abort(world, 1);
  }

private:
  template <typename T> Status sum(T *data, size_t count, MPI_Datatype type) {
    while (count) {
      int part = static_cast<int>(std::min<size_t>(count, INT_MAX));
      if (int code = MPI_Allreduce(MPI_IN_PLACE, data, part, type, MPI_SUM, world); code != MPI_SUCCESS)
        return Status::error("MPI_Allreduce: " + textOf(code));
      data += part;
      count -= static_cast<size_t>(part);
    }
    return Status::success();
  }

  MPI_Comm world;
  bool isSerialized; ///< Any thread may call, one at a time.
  bool isAborted = false;
};

} // namespace

extern "C" __attribute__((visibility("default"))) Communicator *recastJoinRanks(const RankInfo &, std::string &error) {
  int given = 0;
  // The thread of reductions calls within a step, this one between steps. Where only this one may, it makes all calls.
  if (int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given); code != MPI_SUCCESS) {
    error = "MPI_Init_thread: " + textOf(code);
    return nullptr;
  }
  if (given < MPI_THREAD_FUNNELED) {
    error = "this MPI does not let a program with threads call it";
    return nullptr;
  }
  return new MpiCommunicator(MPI_COMM_WORLD, given >= MPI_THREAD_SERIALIZED);
}

} // namespace recast
