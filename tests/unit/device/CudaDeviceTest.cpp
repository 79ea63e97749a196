// The CUDA device over functions that stand in for NVIDIA's: memory is the host's, kernels run by the emulation, and
// products are computed from cuBLASLt's column-major descriptors, so that the way there from row-major ones is tested.
#include "runtime/device/cuda/CudaDevice.h"
#include "runtime/device/Checking.h"
#include "runtime/device/DeviceExecutor.h"
#include "runtime/kernels/cuda/emulation/EmulatedProgram.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/kernels/cuda/table/Matmul.h"
#include "runtime/kernels/cuda/table/Ptx.h"
#include "tests/unit/device/ConvolutionExamples.h"
#include "tests/unit/device/FakeCudnn.h"
#include <cstring>
#include <deque>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

namespace recast::device {
namespace {

using testing::HasSubstr;

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
} *fake;

CudaHandle newHandle() { return reinterpret_cast<CudaHandle>(static_cast<uintptr_t>(++fake->handles) * 16); }
void *at(CudaPointer pointer) { return reinterpret_cast<void *>(pointer); }
int perform(CudaHandle stream, std::function<void()> action) {
  if (fake->isCapturing && !fake->capturing.contains(stream))
    return 901; // Work beside the capture that does not take part in it.
  if (fake->isCapturing)
    fake->captured.push_back(std::move(action));
  else
    action();
  return 0;
}

Driver fakeDriver() {
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
  d.copyOnDevice = [](CudaPointer to, CudaPointer from, size_t bytes, CudaHandle stream) {
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
std::deque<Object> objects;
Object &object(CudaHandle handle) { return objects[reinterpret_cast<uintptr_t>(handle) - 1]; }
CudaHandle newObject(Object value) {
  objects.push_back(value);
  return reinterpret_cast<CudaHandle>(objects.size());
}

/// An element of a matrix whose cudaDataType is `type`.
double element(const void *data, int type, int64_t i) {
  if (type == 28)
    return static_cast<double>(static_cast<float>(static_cast<const Float8E4M3FN *>(data)[i]));
  if (type == 29)
    return static_cast<double>(static_cast<float>(static_cast<const Float8E5M2 *>(data)[i]));
  return static_cast<double>(static_cast<const float *>(data)[i]);
}
/// Of 8-bit operands: CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F and ..._OUTER_VEC_32F.
double scaleOf(const void *scale, int mode, int64_t row) {
  return scale ? static_cast<double>(static_cast<const float *>(scale)[mode == 3 ? row : 0]) : 1;
}

CublasLtFunctions fakeLt() {
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
NcclFunctions fakeNccl() {
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

class CudaDeviceTest : public testing::Test {
protected:
  void SetUp() override { fake = &state; }
  std::unique_ptr<CudaDevice> make() {
    CublasLtFunctions lt = fakeLt();
    NcclFunctions nccl = fakeNccl();
    CudnnFunctions dnn = test::fakeCudnn(cudnn);
    cudnn.perform = perform;
    auto device = CudaDevice::create(fakeDriver(), &lt, &dnn, &nccl, 0);
    EXPECT_TRUE(device) << device.message();
    return device ? std::move(*device) : nullptr;
  }
  Fake state;
  test::FakeCudnn cudnn;
};

/// y[4,5] = xᵀ[4,6] · w[6,5] + bias; z = transpose(y); p[2,3,5] = q[2,3,6] · w as a batch.
TEST_F(CudaDeviceTest, RunsAPlan) {
  for (bool graph : {false, true})
    for (int streams : {1, 3}) {
      state.captured.clear();
      std::unique_ptr<CudaDevice> device = make();
      ASSERT_TRUE(device);
      Plan plan;
      plan.device = "cuda";
      auto type = [](std::vector<int64_t> dims) { return TensorType{DType::F32, std::move(dims)}; };
      plan.buffers = {{"x", type({6, 4}), Place::Input, 0},   {"w", type({2, 6, 5}), Place::Input, 0},
                      {"b", type({5}), Place::Input, 0},      {"q", type({2, 3, 6}), Place::Input, 0},
                      {"v", type({6, 5}), Place::Input, 0},   {"y", type({4, 5}), Place::Arena, 0},
                      {"z", type({5, 4}), Place::Arena, 128}, {"p", type({2, 3, 5}), Place::Arena, 256}};
      plan.arenaBytes = 512;
      plan.inputs = {0, 1, 2, 3, 4};
      auto add = [&](const char *op, Attributes attrs, std::vector<int> inputs, int output) {
        Step step;
        step.spec = {op, "", op, 13, std::move(attrs), {}, {plan.buffers[static_cast<size_t>(output)].type}, {}};
        for (int i : inputs)
          step.spec.inputs.push_back(plan.buffers[static_cast<size_t>(i)].type);
        step.spec.constants.resize(inputs.size());
        step.library = std::string_view(op) == "MatMul" || std::string_view(op) == "Gemm" ? "cublaslt" : "cuda";
        step.inputs = std::move(inputs), step.outputs = {output};
        plan.steps.push_back(std::move(step));
      };
      Attributes transA, tf32;
      transA.set("transA", int64_t(1));
      tf32.set(std::string(cuda::kTf32), int64_t(1));
      add("Gemm", transA, {0, 4, 2}, 5);
      add("Transpose", {}, {5}, 6);
      add("MatMul", tf32, {3, 1}, 7);
      plan.outputs = {{"z", 6, -1}, {"p", 7, -1}};
      auto executor = DeviceExecutor::create(plan, *device, {.streams = streams, .graph = graph});
      ASSERT_TRUE(executor) << executor.message();
      std::vector<std::vector<float>> inputs;
      for (int index : plan.inputs) {
        inputs.emplace_back(static_cast<size_t>(plan.buffers[static_cast<size_t>(index)].type.elems()));
        for (size_t i = 0; i < inputs.back().size(); ++i)
          inputs.back()[i] = static_cast<float>((i * 5 + static_cast<size_t>(index)) % 11) - 5;
        ASSERT_TRUE((*executor)->write(index, inputs.back().data()).ok());
      }
      for (int round = 0; round < 2; ++round) {
        Status status = (*executor)->run();
        ASSERT_TRUE(status.ok()) << status.message();
      }
      std::vector<float> z(20), p(30);
      ASSERT_TRUE((*executor)->read(6, z.data()).ok());
      ASSERT_TRUE((*executor)->read(7, p.data()).ok());
      for (size_t i = 0; i < 4; ++i)
        for (size_t j = 0; j < 5; ++j) {
          float sum = inputs[2][j];
          for (size_t k = 0; k < 6; ++k)
            sum += inputs[0][k * 4 + i] * inputs[4][k * 5 + j];
          EXPECT_EQ(z[j * 4 + i], sum);
        }
      for (size_t n = 0; n < 2; ++n)
        for (size_t i = 0; i < 3; ++i)
          for (size_t j = 0; j < 5; ++j) {
            float sum = 0;
            for (size_t k = 0; k < 6; ++k)
              sum += inputs[3][(n * 3 + i) * 6 + k] * inputs[1][(n * 6 + k) * 5 + j];
            EXPECT_EQ(p[(n * 3 + i) * 5 + j], sum);
          }
      EXPECT_THAT(state.launched, testing::Contains("copy_transposed_4"));
      EXPECT_THAT(state.computeTypes, testing::ElementsAre(68, 77)) << "CUBLAS_COMPUTE_32F and ..._FAST_TF32";
    }
  EXPECT_TRUE(state.memory.empty() && state.hostMemory.empty()) << "memory that is not given back";
}

/// Row-major operands of 8 bits and their scales, as column-major ones.
TEST_F(CudaDeviceTest, RunsProductsOf8Bits) {
  for (cuda::ScaleMode mode : {cuda::ScaleMode::Scalar, cuda::ScaleMode::OuterVector}) {
    std::unique_ptr<CudaDevice> device = make();
    ASSERT_TRUE(device);
    constexpr int64_t m = 32, n = 16, k = 48;
    std::vector<Float8E4M3FN> a;
    std::vector<Float8E5M2> b;
    std::vector<float> scaleA, scaleB, d(m * n);
    for (int64_t i = 0; i < m * k; ++i)
      a.push_back(Float8E4M3FN::round(static_cast<float>(i % 13) - 6, true));
    for (int64_t i = 0; i < n * k; ++i)
      b.push_back(Float8E5M2::round(static_cast<float>(i % 5) - 2, true));
    for (int64_t i = 0; i < m; ++i)
      scaleA.push_back(static_cast<float>(1 << i % 3));
    for (int64_t i = 0; i < n; ++i)
      scaleB.push_back(static_cast<float>(1 << i % 4) / 4);
    cuda::MatmulArgs args{};
    args.m = m, args.n = n, args.k = k, args.batch = 1, args.alpha = 1;
    args.pitchA = args.pitchB = k, args.pitchD = n, args.transB = true;
    args.typeA = DType::F8E4M3FN, args.typeB = DType::F8E5M2, args.typeD = DType::F32;
    args.scaleModeA = args.scaleModeB = mode;
    std::vector<std::byte *> memory;
    for (auto [data, bytes] : {std::pair<const void *, size_t>{a.data(), a.size()},
                               {b.data(), b.size()},
                               {scaleA.data(), scaleA.size() * 4},
                               {scaleB.data(), scaleB.size() * 4},
                               {d.data(), d.size() * 4}}) {
      auto place = device->allocate(bytes, "an operand");
      ASSERT_TRUE(place);
      memory.push_back(*place);
      ASSERT_TRUE(device->copyIn({"an operand", *place, bytes}, data, 0).ok());
    }
    args.a = memory[0], args.b = memory[1], args.scaleA = memory[2], args.scaleB = memory[3], args.d = memory[4];
    std::vector<std::byte> bytes(sizeof(args));
    std::memcpy(bytes.data(), &args, sizeof(args));
    Status status = device->launch({"node 'x' (fp8_product)", std::string(cuda::kMatmul), 1, 1, bytes, {}}, 0);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(device->copyOut(d.data(), {"d", memory[4], d.size() * 4}, 0).ok());
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        float sum = 0;
        for (int64_t l = 0; l < k; ++l)
          sum += static_cast<float>(a[static_cast<size_t>(i * k + l)]) *
                 static_cast<float>(b[static_cast<size_t>(j * k + l)]);
        bool isVector = mode == cuda::ScaleMode::OuterVector;
        EXPECT_EQ(d[static_cast<size_t>(i * n + j)],
                  sum * scaleA[isVector ? static_cast<size_t>(i) : 0] * scaleB[isVector ? static_cast<size_t>(j) : 0]);
      }
  }
  state.major = 8;
  std::unique_ptr<CudaDevice> old = make();
  cuda::MatmulArgs args{};
  args.m = args.n = args.k = args.pitchA = args.pitchB = args.pitchD = 16, args.batch = 1, args.transB = true;
  args.typeA = args.typeB = DType::F8E4M3FN, args.typeD = DType::F32;
  std::vector<std::byte> bytes(sizeof(args));
  std::memcpy(bytes.data(), &args, sizeof(args));
  Status status = old->launch({"node 'x' (fp8_product)", std::string(cuda::kMatmul), 1, 1, bytes, {}}, 0);
  EXPECT_EQ(status.message(), "node 'x' (fp8_product): 8-bit products need sm_89 or later; this is Stand-in (sm_80)");
}

/// By cuDNN, and by the plain kernel where that does not start.
TEST_F(CudaDeviceTest, RunsConvolutions) {
  for (bool isBroken : {false, true})
    for (DType type : {DType::F32, DType::BF16})
      for (const test::ConvolutionExample &example : test::convolutionExamples(type)) {
        SCOPED_TRACE(example.op.name + " " + toString(example.inputs[0].type));
        state.captured.clear(), state.launched.clear();
        cudnn.isBroken = isBroken, cudnn.algorithms.clear();
        std::unique_ptr<CudaDevice> device = make();
        Plan plan = example.plan();
        DeviceOptions options;
        std::string choice;
        options.onChoice = [&](const std::string &, const Result<std::string> &made) {
          choice = made ? *made : made.message();
        };
        auto executor = DeviceExecutor::create(plan, *device, options);
        ASSERT_TRUE(executor) << executor.message();
        EXPECT_THAT(choice, HasSubstr(isBroken ? "cudnnCreate: not initialised" : "cuDNN's "));
        test::Array got;
        Status status = example.run(**executor, got);
        ASSERT_TRUE(status.ok()) << status.message();
        test::expectConvolution(example, got);
        EXPECT_EQ(cudnn.algorithms.size(), isBroken ? 0u : 1u);
        EXPECT_EQ(state.launched.size(), isBroken || example.inputs.size() > 2 ? 1u : 0u);
      }
}

/// sum[3,5] and bf16[4] are summed, largest[2] is the maximum; the rank is this one's.
struct RanksPlan {
  Plan plan;
  std::vector<std::vector<float>> values = {std::vector<float>(15), {0.5f, -1, 2, 4}, {3, -7}};

  RanksPlan() {
    for (size_t i = 0; i < values[0].size(); ++i)
      values[0][i] = static_cast<float>(i) - 4;
    plan.device = "cuda";
    std::vector<TensorType> types = {{DType::F32, {3, 5}}, {DType::BF16, {4}}, {DType::F32, {2}}};
    Step step;
    step.spec = {"reduce", "recast", "all_reduce", 1, {}, types, types, {}};
    step.spec.attrs.set("maxima", int64_t(2));
    step.spec.constants.resize(3);
    step.library = "cuda";
    for (int i = 0; i < 3; ++i) {
      plan.buffers.push_back({"x" + std::to_string(i), types[static_cast<size_t>(i)], Place::Input, 0});
      plan.inputs.push_back(i);
    }
    for (int i = 0; i < 3; ++i) {
      plan.buffers.push_back({"y" + std::to_string(i), types[static_cast<size_t>(i)], Place::Arena, size_t(i) * 64});
      step.inputs.push_back(i);
      step.outputs.push_back(3 + i);
      plan.outputs.push_back({"y" + std::to_string(i), 3 + i, -1});
    }
    plan.buffers.push_back({"rank", {DType::I64, {}}, Place::Arena, 192});
    plan.outputs.push_back({"rank", 6, -1});
    plan.arenaBytes = 256;
    plan.steps.push_back(std::move(step));
    Step rank;
    rank.spec = {"rank", "recast", "rank", 1, {}, {}, {{DType::I64, {}}}, {}};
    rank.library = "cuda";
    rank.outputs = {6};
    plan.steps.push_back(std::move(rank));
  }
  Status write(DeviceExecutor &executor) const {
    std::vector<BFloat16> low;
    for (float value : values[1])
      low.push_back(BFloat16(value));
    for (auto [buffer, data] :
         {std::pair<int, const void *>{0, values[0].data()}, {1, low.data()}, {2, values[2].data()}})
      if (Status status = executor.write(buffer, data); !status.ok())
        return status;
    return Status::success();
  }
};

TEST_F(CudaDeviceTest, RanksReduceInBuckets) {
  for (size_t bucketBytes : {kBucketBytes, size_t(28)})
    for (bool isChecking : {false, true}) {
      state.captured.clear();
      state.isDestroyed = false;
      RanksPlan example;
      OtherRank ranks;
      std::unique_ptr<Device> device = make();
      if (isChecking) // Its sums go through `ranks`, which doubles them, too.
        device = std::make_unique<CheckingDevice>();
      auto executor =
          DeviceExecutor::create(example.plan, *device, {.streams = 2, .ranks = &ranks, .bucketBytes = bucketBytes});
      ASSERT_TRUE(executor) << executor.message();
      for (int round = 1; round <= 2; ++round) {
        ASSERT_TRUE(example.write(**executor).ok());
        Status status = (*executor)->run();
        ASSERT_TRUE(status.ok()) << status.message();
        // 19 elements of sums, 2 places of 2 maxima: 23 floats, or 7 + 7 + 5 and 4.
        EXPECT_EQ(ranks.traffic.reductions, round);
        EXPECT_EQ(ranks.traffic.buckets, round * (bucketBytes == 28 ? 4 : 1));
        EXPECT_EQ(ranks.traffic.bytes, round * 23 * 4);
      }
      std::vector<float> sums(15), largest(2);
      std::vector<BFloat16> low(4);
      int64_t rank = -1;
      ASSERT_TRUE((*executor)->read(3, sums.data()).ok());
      ASSERT_TRUE((*executor)->read(4, low.data()).ok());
      ASSERT_TRUE((*executor)->read(5, largest.data()).ok());
      ASSERT_TRUE((*executor)->read(6, &rank).ok());
      for (size_t i = 0; i < sums.size(); ++i)
        EXPECT_EQ(sums[i], 2 * example.values[0][i]);
      for (size_t i = 0; i < low.size(); ++i)
        EXPECT_EQ(static_cast<float>(low[i]), 2 * example.values[1][i]);
      // The other's place holds nothing but what doubling makes of 0: 0 is larger than -7.
      EXPECT_EQ(largest, (std::vector<float>{6, 0}));
      EXPECT_EQ(rank, 0);
      executor->reset();
      device.reset();
      EXPECT_EQ(state.isDestroyed, !isChecking);
      EXPECT_FALSE(state.isAborted);
    }
}

/// A rank that is gone ends the others, although their devices wait for it.
TEST_F(CudaDeviceTest, LostRanksEndTheRun) {
  RanksPlan example;
  OtherRank ranks(1); // The id comes through, then nothing.
  std::unique_ptr<CudaDevice> device = make();
  auto executor = DeviceExecutor::create(example.plan, *device, {.ranks = &ranks});
  ASSERT_TRUE(executor) << executor.message();
  ASSERT_TRUE(example.write(**executor).ok());
  state.isBusy = true;
  EXPECT_EQ((*executor)->run().message(), "a rank is lost");
  EXPECT_TRUE(state.isAborted);

  OtherRank others;
  std::unique_ptr<CudaDevice> second = make();
  auto again = DeviceExecutor::create(example.plan, *second, {.graph = false, .ranks = &others});
  ASSERT_TRUE(again) << again.message();
  state.isBusy = true, state.asyncError = 6;
  EXPECT_EQ((*again)->run().message(), "ncclAllReduce: remote error");

  OtherRank gone(0);
  EXPECT_EQ(DeviceExecutor::create(example.plan, *make(), {.ranks = &gone}).message(), "a rank is lost");
}

TEST_F(CudaDeviceTest, SaysWhatIsWrong) {
  state.devices = 0;
  auto none = CudaDevice::create(fakeDriver(), nullptr, nullptr, nullptr, 0);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.message(), HasSubstr("this machine has 0 CUDA devices"));
  state.devices = 1, state.major = 7;
  auto old = CudaDevice::create(fakeDriver(), nullptr, nullptr, nullptr, 0);
  ASSERT_FALSE(old);
  EXPECT_EQ(old.message(), "Stand-in (sm_70) is too old: sm_80 or later is needed");
  state.major = 9;
  std::unique_ptr<CudaDevice> device = make();
  EXPECT_EQ(device->name(), "Stand-in (sm_90)");
  auto tooMuch = device->allocate(size_t(1) << 40, "the arena");
  ASSERT_FALSE(tooMuch);
  EXPECT_EQ(tooMuch.message(), "cuMemAlloc of 1099511627776 bytes for the arena: out of memory");
  Status status = device->launch({"node 'x' (Nothing)", "nothing", 1, 32, {}, {}}, 0);
  EXPECT_EQ(status.message(), "node 'x' (Nothing): there is no kernel nothing");
}

/// Every kernel that programs may launch is in the PTX, and in the emulation.
TEST_F(CudaDeviceTest, PtxHoldsEveryKernel) {
  std::string ptx;
  for (const cuda::PtxModule &module : cuda::ptxModules())
    ptx += module.text;
  EXPECT_GT(cuda::emulation::kernels().size(), 100u);
  for (const cuda::emulation::Kernel &kernel : cuda::emulation::kernels())
    EXPECT_NE(ptx.find(".entry " + std::string(kernel.name) + "("), std::string::npos) << kernel.name;
}

} // namespace
} // namespace recast::device
