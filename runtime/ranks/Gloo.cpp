// The module that links Gloo.
#include "runtime/ranks/Module.h"
#include "runtime/ranks/Rendezvous.h"
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <optional>

namespace recast {

namespace {

/// Ranks may start this far apart, and be this far apart in a step. A rank that ends is noticed at once.
constexpr auto kJoinTimeout = std::chrono::seconds(300);
constexpr auto kStepTimeout = std::chrono::minutes(60);

class GlooCommunicator final : public Communicator {
public:
  explicit GlooCommunicator(const RankInfo &info) {
    ownRank = info.rank;
    ranks = info.size;
    std::optional<RendezvousServer> server;
    if (ownRank == 0)
      server.emplace(info.port);
    RendezvousClient store(info.address, info.port, kJoinTimeout);
    auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(store.ownAddress().c_str()));
    auto made = std::make_shared<gloo::rendezvous::Context>(ownRank, ranks);
    made->setTimeout(kJoinTimeout);
    made->connectFullMesh(store, device);
    made->setTimeout(kStepTimeout);
    context = std::move(made);
    // Rank 0 keeps the table until all have read it.
    double zero = 0;
    reduce(&zero, 1);
  }

  Status sum(float *data, size_t count) override { return trySum(data, count); }
  Status sum(double *data, size_t count) override { return trySum(data, count); }
  /// The others notice that this rank's connections end with it. A thread of this one that waits for them does not.
  void abort() override {
    context->closeConnections();
    if (!isSumming)
      return;
    std::fflush(nullptr);
    std::_Exit(1);
  }

private:
  template <typename T> Status trySum(T *data, size_t count) {
    try {
      isSumming = true;
      reduce(data, count);
      isSumming = false;
      return Status::success();
    } catch (const std::exception &e) {
      isSumming = false;
      return Status::error(std::string("a rank is lost: ") + e.what());
    }
  }

  template <typename T> void reduce(T *data, size_t count) {
    gloo::AllreduceOptions options(context);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setOutput(data, count);
    options.setReduceFunction([](void *c, const void *a, const void *b, size_t n) { gloo::sum<T>(c, a, b, n); });
    options.setTag(tag++);
    gloo::allreduce(options);
  }

  std::shared_ptr<gloo::Context> context;
  uint32_t tag = 0;
  std::atomic<bool> isSumming = false;
};

} // namespace

extern "C" __attribute__((visibility("default"))) Communicator *recastJoinRanks(const RankInfo &info,
                                                                                std::string &error) {
  try {
    return new GlooCommunicator(info);
  } catch (const std::exception &e) {
    error = e.what();
    return nullptr;
  }
}

} // namespace recast
