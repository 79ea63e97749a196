// Functions that stand in for those of NVIDIA's driver, cuBLASLt and NCCL, and a rank for the others.
#pragma once
#include "runtime/device/cuda/CudaDevice.h"
#include "runtime/kernels/cuda/emulation/EmulatedProgram.h"
#include "runtime/kernels/cuda/emulation/Generated.h"
#include "runtime/plan/DType.h"
#include <cstring>
#include <deque>
#include <gtest/gtest.h>
#include <regex>
#include <set>

namespace recast::device::test {

/// A kernel of a module: its parameters as PTX declares them, and what runs it.
struct FakeFunction {
  std::string name;
  size_t argBytes = 0, params = 0;
};

/// What the stand-ins note. One at a time: the functions are plain ones.
struct Fake {
  bool isCapturing = false;
  std::vector<std::function<void()>> captured;
  std::set<CudaHandle> capturing; ///< Streams and events that take part in the capture.
  std::set<CudaHandle> graphs;    ///< That can be launched.
  std::vector<std::string> launched;
  std::set<CudaPointer> memory;
  std::set<void *> hostMemory;
  int handles = 0, devices = 1, major = 9;
  bool isBusy = false, isAborted = false, isDestroyed = false; ///< The stream; the ranks' devices.
  int asyncError = 0;
  std::map<CudaHandle, std::string> ptx; ///< Of modules.
  bool isPtxForeign = false;
  std::deque<FakeFunction> functions;
  std::vector<std::unique_ptr<cuda::emulation::GeneratedKernels>> generated; ///< Host code of kernels in plans' PTX.
  bool hasNoAlgorithm = false;
  std::set<int> computeTypes;                                                  ///< Of products.
  std::function<int(CudaHandle stream, std::function<void()> action)> enqueue; ///< Of a driver that is not this one.
};
inline Fake *fake;

inline CudaHandle newHandle() { return reinterpret_cast<CudaHandle>(static_cast<uintptr_t>(++fake->handles) * 16); }
inline void *at(CudaPointer pointer) { return reinterpret_cast<void *>(pointer); }
inline int perform(CudaHandle stream, std::function<void()> action) {
  if (fake->enqueue)
    return fake->enqueue(stream, std::move(action));
  if (fake->isCapturing && !fake->capturing.contains(stream))
    return 901; // Work beside the capture that does not take part in it.
  if (fake->isCapturing)
    fake->captured.push_back(std::move(action));
  else
    action();
  return 0;
}

/// The size of the parameters of an entry point: scalars and structs in order, each at a multiple of its alignment.
inline FakeFunction functionOf(const std::string &ptx, const std::string &name, size_t at) {
  static const std::regex param(R"(\.param (?:\.align (\d+) \.b8 \w+\[(\d+)\]|\.[a-z](\d+)))");
  FakeFunction function{name};
  std::string text = ptx.substr(at, ptx.find(')', at) - at);
  for (std::sregex_iterator it(text.begin(), text.end(), param), end; it != end; ++it, ++function.params) {
    bool isStruct = (*it)[1].matched;
    size_t bytes = isStruct ? std::stoul((*it)[2]) : std::stoul((*it)[3]) / 8;
    size_t alignment = isStruct ? std::stoul((*it)[1]) : bytes;
    function.argBytes = (function.argBytes + alignment - 1) / alignment * alignment + bytes;
  }
  return function;
}

/// CU_LAUNCH_PARAM_BUFFER_POINTER and ..._SIZE, in that order: the only way to launch a kernel without knowing how many
/// parameters it has. The driver has no way to see that an array of arguments is too short.
inline std::vector<std::byte> argumentsOf(void **args, void **extra) {
  EXPECT_TRUE(!args && extra && extra[0] == reinterpret_cast<void *>(1) && extra[2] == reinterpret_cast<void *>(2) &&
              !extra[4]);
  if (args || !extra)
    return {};
  auto *bytes = static_cast<const std::byte *>(extra[1]);
  return std::vector(bytes, bytes + *static_cast<const size_t *>(extra[3]));
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
  d.contextSynchronize = [] {
    EXPECT_FALSE(fake->isCapturing);
    return 0;
  };
  d.moduleLoadDataEx = [](CudaHandle *module, const void *image, unsigned options, int *names, void **values) {
    EXPECT_FALSE(fake->isCapturing);
    if (fake->isPtxForeign) {
      EXPECT_TRUE(options == 2 && names[0] == 5 && names[1] == 6) << "CU_JIT_ERROR_LOG_BUFFER and ..._SIZE_BYTES";
      std::strncpy(static_cast<char *>(values[0]), "ptxas fatal", reinterpret_cast<size_t>(values[1]));
      return 218;
    }
    *module = newHandle();
    return fake->ptx[*module] = static_cast<const char *>(image), 0;
  };
  d.moduleGetFunction = [](CudaHandle *function, CudaHandle module, const char *name) {
    EXPECT_FALSE(fake->isCapturing) << "where modules are loaded lazily, this loads one";
    const std::string &ptx = fake->ptx.at(module);
    size_t entry = ptx.find(".entry " + std::string(name) + "(");
    if (entry == std::string::npos)
      return 500;
    fake->functions.push_back(functionOf(ptx, name, entry));
    return *function = reinterpret_cast<CudaHandle>(&fake->functions.back()), 0;
  };
  d.memAlloc = [](CudaPointer *pointer, size_t bytes) {
    EXPECT_FALSE(fake->isCapturing);
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
    EXPECT_FALSE(fake->isCapturing);
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
  d.eventElapsedTime = [](float *milliseconds, CudaHandle from, CudaHandle to) {
    // As if each event had been passed as long after the one made before it as its handle is further.
    *milliseconds = static_cast<float>(reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from));
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
                      unsigned, CudaHandle stream, void **args, void **extra) {
    auto *called = reinterpret_cast<const FakeFunction *>(function);
    std::vector<std::byte> bytes = argumentsOf(args, extra);
    EXPECT_EQ(bytes.size(), called->argBytes) << called->name << " has other parameters";
    return perform(stream, [=] {
      fake->launched.emplace_back(called->name);
      const cuda::emulation::Kernel *kernel = cuda::emulation::find(called->name);
      std::unique_ptr<cuda::emulation::Kernel> own;
      for (size_t i = 0; i < fake->generated.size() && !kernel; ++i) {
        own = fake->generated[i]->find(called->name, called->params, static_cast<int>(threads));
        kernel = own.get();
      }
      ASSERT_TRUE(kernel) << called->name;
      cuda::emulation::Range all{"memory", nullptr, SIZE_MAX, true, true};
      Status status = cuda::emulation::launch(*kernel, x, static_cast<int>(threads), bytes, {&all, 1});
      EXPECT_TRUE(status.ok()) << status.message();
    });
  };
  d.graphInstantiate = [](CudaHandle *executable, CudaHandle, unsigned long long) {
    return fake->graphs.insert(*executable = newHandle()), 0;
  };
  d.graphExecDestroy = [](CudaHandle executable) {
    EXPECT_EQ(fake->graphs.erase(executable), 1u);
    return 0;
  };
  d.graphLaunch = [](CudaHandle executable, CudaHandle) {
    EXPECT_TRUE(fake->graphs.contains(executable));
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
  std::array<uint32_t, 4> alignments = {256, 256, 256, 256}; ///< Of a, b, c and d, with a preference.
};
inline std::deque<Object> objects;
inline Object &object(CudaHandle handle) { return objects[reinterpret_cast<uintptr_t>(handle) - 1]; }
inline CudaHandle newObject(Object value) {
  objects.push_back(value);
  return reinterpret_cast<CudaHandle>(objects.size());
}

/// Calls `body.template operator()<T>()` with the type that has this cudaDataType.
template <typename Body> decltype(auto) dispatchCuda(int type, Body &&body) {
  switch (type) {
  case 2:
    return body.template operator()<Half>();
  case 14:
    return body.template operator()<BFloat16>();
  case 28:
    return body.template operator()<Float8E4M3FN>();
  case 29:
    return body.template operator()<Float8E5M2>();
  default:
    EXPECT_EQ(type, 0) << "CUDA_R_32F";
    return body.template operator()<float>();
  }
}
inline double element(const void *data, int type, int64_t i) {
  return dispatchCuda(
      type, [&]<typename T>() { return static_cast<double>(static_cast<float>(static_cast<const T *>(data)[i])); });
}
inline void setElement(void *data, int type, int64_t i, double value) {
  dispatchCuda(type, [&]<typename T>() {
    if constexpr (std::is_constructible_v<T, double>)
      static_cast<T *>(data)[i] = T(value);
    else
      ADD_FAILURE() << "a product of 8 bits";
  });
}
/// Of 8-bit operands: CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F and ..._OUTER_VEC_32F.
inline double scaleOf(const void *scale, int mode, int64_t row) {
  return scale ? static_cast<double>(static_cast<const float *>(scale)[mode == 3 ? row : 0]) : 1;
}

inline CublasLtFunctions fakeLt() {
  CublasLtFunctions lt{};
  lt.create = [](CudaHandle *handle) {
    EXPECT_FALSE(fake->isCapturing) << "it allocates and waits";
    return *handle = newHandle(), 0;
  };
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
  lt.preferenceCreate = [](CudaHandle *preference) { return *preference = newObject({}), 0; };
  lt.preferenceSet = [](CudaHandle preference, int attribute, const void *value, size_t) {
    if (attribute >= 5 && attribute <= 8)
      object(preference).alignments[static_cast<size_t>(attribute - 5)] = *static_cast<const uint32_t *>(value);
    return 0;
  };
  // As the library does, the fastest for operands that are as far aligned as it was told.
  lt.heuristic = [](CudaHandle, CudaHandle desc, CudaHandle a, CudaHandle, CudaHandle, CudaHandle,
                    CudaHandle preference, int, MatmulAlgorithm *results, int *found) {
    EXPECT_EQ(object(desc).scaleA != nullptr, object(a).type >= 28) << "scales belong to 8-bit operands";
    if (fake->hasNoAlgorithm)
      return *found = 0, 15;
    std::ranges::copy(object(preference).alignments, results->algorithm);
    return results->status = 0, *found = 1, 0;
  };
  lt.matmul = [](CudaHandle, CudaHandle desc, const void *alpha, const void *a, CudaHandle layoutA, const void *b,
                 CudaHandle layoutB, const void *beta, const void *c, CudaHandle, void *d, CudaHandle layoutD,
                 const void *algorithm, void *, size_t, CudaHandle stream) {
    auto *alignments = static_cast<const uint64_t *>(algorithm);
    for (const void *operand : {a, b, c, static_cast<const void *>(d)})
      EXPECT_EQ(reinterpret_cast<uintptr_t>(operand) % *alignments++, 0u) << "the algorithm is for another alignment";
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
            int64_t to = batch * ld.stride + j * ld.pitch + i;
            double before = keep != 0 ? static_cast<double>(keep) * element(d, ld.type, to) : 0;
            setElement(d, ld.type, to, static_cast<double>(by) * sum + before);
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
  // Both wait until no graph holds a sum of the communicator ("keep polling until all graphs referencing us die").
  nccl.commAbort = [](CudaHandle) {
    EXPECT_TRUE(fake->graphs.empty());
    fake->isAborted = true;
    fake->isBusy = false;
    return 0;
  };
  nccl.commDestroy = [](CudaHandle) {
    EXPECT_TRUE(fake->graphs.empty());
    return fake->isDestroyed = true, 0;
  };
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
