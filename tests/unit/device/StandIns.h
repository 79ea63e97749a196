// Functions that stand in for those of NVIDIA's driver, cuBLASLt and NCCL, and a rank for the others.
#pragma once
#include "runtime/device/cuda/CudaDevice.h"
#include "runtime/kernels/cuda/emulation/EmulatedProgram.h"
#include "runtime/plan/Float8.h"
#include <cstring>
#include <deque>
#include <gtest/gtest.h>
#include <set>

namespace recast::device::test {

/// What the stand-ins note. One at a time: the functions are plain ones.
struct Fake {
  bool isCapturing = false;
  std::vector<std::function<void()>> captured;
  std::set<CudaHandle> capturing; ///< Streams and events that take part in the capture.
  std::vector<std::string> launched;
  std::set<CudaPointer> memory;
  std::set<void *> hostMemory;
  int handles = 0, devices = 1, major = 9;
  bool isBusy = false, isAborted = false, isDestroyed = false; ///< The stream; the ranks' devices.
  int asyncError = 0;
  std::string ptx;
  std::set<int> computeTypes; ///< Of products.
};
inline Fake *fake;

inline CudaHandle newHandle() { return reinterpret_cast<CudaHandle>(static_cast<uintptr_t>(++fake->handles) * 16); }
inline void *at(CudaPointer pointer) { return reinterpret_cast<void *>(pointer); }
inline int perform(CudaHandle stream, std::function<void()> action) {
  if (fake->isCapturing && !fake->capturing.contains(stream))
    return 901; // Work beside the capture that does not take part in it.
  if (fake->isCapturing)
    fake->captured.push_back(std::move(action));
  else
    action();
  return 0;
}

inline Driver fakeDriver() {
  Driver d{};
  d.getErrorString = [](int error, const char **text) { return *text = error == 2 ? "out of memory" : "wrong", 0; };
  d.init = [](unsigned) { return 0; };
  d.deviceGetCount = [](int *count) { return *count = fake->devices, 0; };
  d.deviceGet = [](int *device, int ordinal) { return *device = ordinal, 0; };
  d.deviceGetName = [](char *name, int length, int) { return std::strncpy(name, "Stand-in", size_t(length)), 0; };
  d.deviceGetAttribute = [](int *value, int attribute, int) { return *value = attribute == 75 ? fake->major : 0, 0; };
  d.primaryContextRetain = [](CudaHandle *context, int) { return *context = newHandle(), 0; };
  d.contextSetCurrent = [](CudaHandle) { return 0; };
  d.contextSynchronize = [] { return 0; };
  d.moduleLoadDataEx = [](CudaHandle *module, const void *image, unsigned, int *, void **) {
    fake->ptx += static_cast<const char *>(image);
    return *module = newHandle(), 0;
  };
  d.moduleGetFunction = [](CudaHandle *function, CudaHandle, const char *name) {
    if (fake->ptx.find(".entry " + std::string(name) + "(") == std::string::npos)
      return 500;
    return *function = reinterpret_cast<CudaHandle>(const_cast<cuda::emulation::Kernel *>(cuda::emulation::find(name))),
           0;
  };
  d.memAlloc = [](CudaPointer *pointer, size_t bytes) {
    if (bytes > size_t(1) << 32)
      return 2;
    *pointer = reinterpret_cast<CudaPointer>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
    return fake->memory.insert(*pointer), 0;
  };
  d.memFree = [](CudaPointer pointer) {
    EXPECT_EQ(fake->memory.erase(pointer), 1u);
    return std::free(at(pointer)), 0;
  };
  d.memHostAlloc = [](void **pointer, size_t bytes, unsigned) {
    *pointer = std::malloc(bytes);
    return fake->hostMemory.insert(*pointer), 0;
  };
  d.memFreeHost = [](void *pointer) {
    EXPECT_EQ(fake->hostMemory.erase(pointer), 1u);
    return std::free(pointer), 0;
  };
  d.copyToDevice = [](CudaPointer to, const void *from, size_t bytes, CudaHandle) {
    EXPECT_FALSE(fake->isCapturing);
    return std::memcpy(at(to), from, bytes), 0;
  };
  d.copyToHost = [](void *to, CudaPointer from, size_t bytes, CudaHandle) {
    EXPECT_FALSE(fake->isCapturing);
    return std::memcpy(to, at(from), bytes), 0;
  };
  d.copy = [](CudaPointer to, CudaPointer from, size_t bytes, CudaHandle stream) {
    return perform(stream, [=] { std::memcpy(at(to), at(from), bytes); });
  };
  d.fill = [](CudaPointer to, unsigned char value, size_t bytes, CudaHandle stream) {
    return perform(stream, [=] { std::memset(at(to), value, bytes); });
  };
  d.streamCreate = [](CudaHandle *stream, unsigned) { return *stream = newHandle(), 0; };
  d.streamQuery = [](CudaHandle) { return fake->isBusy ? kNotReady : 0; };
  d.eventCreate = [](CudaHandle *event, unsigned) { return *event = newHandle(), 0; };
  d.eventSynchronize = [](CudaHandle) { return 0; };
  d.eventRecord = [](CudaHandle event, CudaHandle stream) {
    if (fake->capturing.contains(stream))
      fake->capturing.insert(event);
    return 0;
  };
  d.streamWaitEvent = [](CudaHandle stream, CudaHandle event, unsigned) {
    if (fake->capturing.contains(event))
      fake->capturing.insert(stream);
    return 0;
  };
  d.streamBeginCapture = [](CudaHandle stream, int) {
    fake->isCapturing = true;
    return fake->capturing.insert(stream), 0;
  };
  d.streamEndCapture = [](CudaHandle, CudaHandle *graph) {
    fake->isCapturing = false;
    fake->capturing.clear();
    return *graph = newHandle(), 0;
  };
  d.launchKernel = [](CudaHandle function, unsigned x, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                      unsigned, CudaHandle stream, void **args, void **) {
    auto *kernel = reinterpret_cast<const cuda::emulation::Kernel *>(function);
    auto *bytes = static_cast<const std::byte *>(args[0]);
    return perform(stream, [=, copy = std::vector(bytes, bytes + kernel->argBytes)] {
      fake->launched.emplace_back(kernel->name);
      cuda::emulation::Range all{"memory", nullptr, SIZE_MAX, true, true};
      Status status = cuda::emulation::launch(*kernel, x, static_cast<int>(threads), copy, {&all, 1});
      EXPECT_TRUE(status.ok()) << status.message();
    });
  };
  d.graphInstantiate = [](CudaHandle *executable, CudaHandle, unsigned long long) {
    return *executable = newHandle(), 0;
  };
  d.graphLaunch = [](CudaHandle, CudaHandle) {
    for (const std::function<void()> &action : fake->captured)
      action();
    return 0;
  };
  d.graphDestroy = [](CudaHandle) { return 0; };
  return d;
}

/// A descriptor or a layout: attributes by number.
struct Object {
  int type = 0;
  int64_t rows = 0, columns = 0, pitch = 0, stride = 0;
  int32_t batch = 1;
  bool transA = false, transB = false;
  const void *scaleA = nullptr, *scaleB = nullptr;
  int32_t scaleModeA = 0, scaleModeB = 0;
};
inline std::deque<Object> objects;
inline Object &object(CudaHandle handle) { return objects[reinterpret_cast<uintptr_t>(handle) - 1]; }
inline CudaHandle newObject(Object value) {
  objects.push_back(value);
  return reinterpret_cast<CudaHandle>(objects.size());
}

/// An element of a matrix whose cudaDataType is `type`.
inline double element(const void *data, int type, int64_t i) {
  if (type == 28)
    return static_cast<double>(static_cast<float>(static_cast<const Float8E4M3FN *>(data)[i]));
  if (type == 29)
    return static_cast<double>(static_cast<float>(static_cast<const Float8E5M2 *>(data)[i]));
  return static_cast<double>(static_cast<const float *>(data)[i]);
}
/// Of 8-bit operands: CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F and ..._OUTER_VEC_32F.
inline double scaleOf(const void *scale, int mode, int64_t row) {
  return scale ? static_cast<double>(static_cast<const float *>(scale)[mode == 3 ? row : 0]) : 1;
}

inline CublasLtFunctions fakeLt() {
  CublasLtFunctions lt{};
  lt.create = [](CudaHandle *handle) { return *handle = newHandle(), 0; };
  lt.matmulDescCreate = [](CudaHandle *desc, int computeType, int) {
    fake->computeTypes.insert(computeType);
    return *desc = newObject({}), 0;
  };
  lt.matmulDescSet = [](CudaHandle desc, int attribute, const void *value, size_t) {
    if (attribute == 3)
      object(desc).transA = *static_cast<const int32_t *>(value) == 1;
    if (attribute == 4)
      object(desc).transB = *static_cast<const int32_t *>(value) == 1;
    if (attribute == 17)
      object(desc).scaleA = *static_cast<const void *const *>(value);
    if (attribute == 18)
      object(desc).scaleB = *static_cast<const void *const *>(value);
    if (attribute == 31)
      object(desc).scaleModeA = *static_cast<const int32_t *>(value);
    if (attribute == 32)
      object(desc).scaleModeB = *static_cast<const int32_t *>(value);
    return 0;
  };
  lt.layoutCreate = [](CudaHandle *layout, int type, uint64_t rows, uint64_t columns, int64_t pitch) {
    EXPECT_GE(pitch, static_cast<int64_t>(rows)) << "a leading dimension below the rows";
    return *layout = newObject({type, int64_t(rows), int64_t(columns), pitch}), 0;
  };
  lt.layoutSet = [](CudaHandle layout, int attribute, const void *value, size_t) {
    if (attribute == 5)
      object(layout).batch = *static_cast<const int32_t *>(value);
    if (attribute == 6)
      object(layout).stride = *static_cast<const int64_t *>(value);
    return 0;
  };
  lt.preferenceCreate = [](CudaHandle *preference) { return *preference = newHandle(), 0; };
  lt.preferenceSet = [](CudaHandle, int, const void *, size_t) { return 0; };
  lt.heuristic = [](CudaHandle, CudaHandle, CudaHandle, CudaHandle, CudaHandle, CudaHandle, CudaHandle, int,
                    MatmulAlgorithm *results, int *found) { return results->status = 0, *found = 1, 0; };
  lt.matmul = [](CudaHandle, CudaHandle desc, const void *alpha, const void *a, CudaHandle layoutA, const void *b,
                 CudaHandle layoutB, const void *beta, const void *, CudaHandle, void *d, CudaHandle layoutD,
                 const void *, void *, size_t, CudaHandle stream) {
    float by = *static_cast<const float *>(alpha), keep = *static_cast<const float *>(beta);
    Object how = object(desc), la = object(layoutA), lb = object(layoutB), ld = object(layoutD);
    EXPECT_EQ(how.transA ? la.columns : la.rows, ld.rows);
    EXPECT_EQ(how.transB ? lb.rows : lb.columns, ld.columns);
    EXPECT_EQ(how.transA ? la.rows : la.columns, how.transB ? lb.columns : lb.rows);
    return perform(stream, [=] {
      for (int64_t batch = 0; batch < ld.batch; ++batch)
        for (int64_t i = 0; i < ld.rows; ++i)
          for (int64_t j = 0; j < ld.columns; ++j) {
            double sum = 0;
            for (int64_t k = 0; k < (how.transA ? la.rows : la.columns); ++k)
              sum += element(a, la.type, batch * la.stride + (how.transA ? i * la.pitch + k : k * la.pitch + i)) *
                     element(b, lb.type, batch * lb.stride + (how.transB ? k * lb.pitch + j : j * lb.pitch + k));
            sum *= scaleOf(how.scaleA, how.scaleModeA, i) * scaleOf(how.scaleB, how.scaleModeB, j);
            float &to = (static_cast<float *>(d) + batch * ld.stride)[j * ld.pitch + i];
            to = static_cast<float>(static_cast<double>(by) * sum + (keep != 0 ? static_cast<double>(keep * to) : 0));
          }
    });
  };
  return lt;
}

/// NCCL between this process and others that have the same data.
inline NcclFunctions fakeNccl() {
  NcclFunctions nccl{};
  nccl.getUniqueId = [](NcclUniqueId *id) {
    for (size_t i = 0; i < sizeof(id->bytes); ++i)
      id->bytes[i] = static_cast<unsigned char>(i * 7);
    return 0;
  };
  nccl.commInitRank = [](CudaHandle *communicator, int ranks, NcclUniqueId id, int rank) {
    for (size_t i = 0; i < sizeof(id.bytes); ++i)
      EXPECT_EQ(id.bytes[i], static_cast<unsigned char>(i * 7));
    EXPECT_EQ(rank, 0);
    return *communicator = reinterpret_cast<CudaHandle>(static_cast<intptr_t>(ranks)), 0;
  };
  nccl.allReduce = [](const void *from, void *to, size_t count, int type, int operation, CudaHandle communicator,
                      CudaHandle stream) {
    EXPECT_EQ(from, to);
    EXPECT_EQ(operation, 0) << "ncclSum";
    EXPECT_TRUE(type == 7 || type == 8) << "ncclFloat32 or ncclFloat64";
    auto ranks = reinterpret_cast<intptr_t>(communicator);
    return perform(stream, [=] {
      for (size_t i = 0; i < count; ++i)
        if (type == 7)
          static_cast<float *>(to)[i] *= static_cast<float>(ranks);
        else
          static_cast<double *>(to)[i] *= static_cast<double>(ranks);
    });
  };
  nccl.commGetAsyncError = [](CudaHandle, int *result) { return *result = fake->asyncError, 0; };
  nccl.commAbort = [](CudaHandle) {
    fake->isAborted = true;
    fake->isBusy = false;
    return 0;
  };
  nccl.commDestroy = [](CudaHandle) { return fake->isDestroyed = true, 0; };
  nccl.getErrorString = [](int result) { return result == 6 ? "remote error" : "some error"; };
  return nccl;
}

/// Rank 0 of two, whose other does as this one does; from call number `lastCall` on it is gone.
class OtherRank final : public Communicator {
public:
  explicit OtherRank(int lastCall = 1 << 30) : callsLeft(lastCall) { ranks = 2; }
  Status sum(float *data, size_t count) override {
    if (callsLeft-- <= 0)
      return Status::error("a rank is lost");
    // Only rank 0 gives the id that ranks find each other by.
    for (size_t i = 0; i < count && count != sizeof(NcclUniqueId); ++i)
      data[i] *= 2;
    return Status::success();
  }
  Status sum(double *, size_t) override { return Status::error("devices reduce"); }
  void abort() override {}

private:
  int callsLeft;
};

} // namespace recast::device::test
