// The CUDA device over functions that stand in for NVIDIA's: memory is the host's, kernels run by the emulation, and
// products are computed from cuBLASLt's column-major descriptors, so that the way there from row-major ones is tested.
#include "runtime/device/cuda/CudaDevice.h"
#include "runtime/device/DeviceExecutor.h"
#include "runtime/kernels/cuda/emulation/EmulatedProgram.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/kernels/cuda/table/Matmul.h"
#include "runtime/kernels/cuda/table/Ptx.h"
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
  int handles = 0, devices = 1, major = 9;
  std::string ptx;
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
  d.eventCreate = [](CudaHandle *event, unsigned) { return *event = newHandle(), 0; };
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
};
std::deque<Object> objects;
Object &object(CudaHandle handle) { return objects[reinterpret_cast<uintptr_t>(handle) - 1]; }
CudaHandle newObject(Object value) {
  objects.push_back(value);
  return reinterpret_cast<CudaHandle>(objects.size());
}

CublasLtFunctions fakeLt() {
  CublasLtFunctions lt{};
  lt.create = [](CudaHandle *handle) { return *handle = newHandle(), 0; };
  lt.matmulDescCreate = [](CudaHandle *desc, int, int) { return *desc = newObject({}), 0; };
  lt.matmulDescSet = [](CudaHandle desc, int attribute, const void *value, size_t) {
    if (attribute == 3)
      object(desc).transA = *static_cast<const int32_t *>(value) == 1;
    if (attribute == 4)
      object(desc).transB = *static_cast<const int32_t *>(value) == 1;
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
            for (int64_t k = 0; k < (how.transA ? la.rows : la.columns); ++k) {
              auto *x = static_cast<const float *>(a) + batch * la.stride;
              auto *y = static_cast<const float *>(b) + batch * lb.stride;
              sum += static_cast<double>(how.transA ? x[i * la.pitch + k] : x[k * la.pitch + i]) *
                     static_cast<double>(how.transB ? y[k * lb.pitch + j] : y[j * lb.pitch + k]);
            }
            float &to = (static_cast<float *>(d) + batch * ld.stride)[j * ld.pitch + i];
            to = static_cast<float>(static_cast<double>(by) * sum + (keep != 0 ? static_cast<double>(keep * to) : 0));
          }
    });
  };
  return lt;
}

class CudaDeviceTest : public testing::Test {
protected:
  void SetUp() override { fake = &state; }
  std::unique_ptr<CudaDevice> make() {
    CublasLtFunctions lt = fakeLt();
    auto device = CudaDevice::create(fakeDriver(), &lt, 0);
    EXPECT_TRUE(device) << device.message();
    return device ? std::move(*device) : nullptr;
  }
  Fake state;
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
      Attributes transA;
      transA.set("transA", int64_t(1));
      add("Gemm", transA, {0, 4, 2}, 5);
      add("Transpose", {}, {5}, 6);
      add("MatMul", {}, {3, 1}, 7);
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
    }
  EXPECT_TRUE(state.memory.empty()) << "memory that is not given back";
}

TEST_F(CudaDeviceTest, SaysWhatIsWrong) {
  state.devices = 0;
  auto none = CudaDevice::create(fakeDriver(), nullptr, 0);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.message(), HasSubstr("this machine has 0 CUDA devices"));
  state.devices = 1, state.major = 7;
  auto old = CudaDevice::create(fakeDriver(), nullptr, 0);
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
