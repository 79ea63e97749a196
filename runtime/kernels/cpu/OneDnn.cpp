#include "runtime/kernels/cpu/OneDnn.h"
#include "runtime/reference/Loops.h"

namespace recast::onednn {
namespace {

constexpr size_t kAlignment = 64;
constexpr int64_t kLargestSize = std::numeric_limits<int32_t>::max(); // oneDNN computes blocks of a loop as int.

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

const dnnl::stream &stream() {
  static const dnnl::stream instance(engine());
  return instance;
}

dnnl::memory::dims dimsOf(std::span<const int64_t> dims) { return {dims.begin(), dims.end()}; }

struct Maker {
  std::string_view domain, op;
  std::unique_ptr<Kernel> (*make)(const StepSpec &spec);
};

constexpr Maker kMakers[] = {
    {"", "MatMul", makeMatMul},
    {"", "Gemm", makeGemm},
    {"", "Conv", makeConv},
    {"", "ConvTranspose", makeConvTranspose},
    {"recast", "conv_grad_input", makeConvGradInput},
    {"recast", "conv_grad_weight", makeConvGradWeight},
    {"", "MaxPool", makeMaxPool},
    {"", "AveragePool", makeAveragePool},
    {"", "GlobalAveragePool", makeAveragePool},
    {"recast", "max_pool_grad", makeMaxPoolGrad},
    {"recast", "average_pool_grad", makeAveragePoolGrad},
};

using reference::load;
using reference::roundTo;

/// to = from, one to f32.
template <typename T> void widen(const T *from, float *to, int64_t count) {
  parallelFor(count, reference::kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      to[i] = load(from[i]);
  });
}

/// to[n,c,i] = from[n,c,i] + bias[c], rounded once; bias may be null.
template <typename T>
void narrow(const float *from, const T *bias, T *to, int64_t planes, int64_t channels, int64_t elems) {
  parallelFor(planes, reference::grainFor(elems), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      float added = bias ? load(bias[plane % channels]) : 0.0f;
      for (int64_t i = plane * elems; i < (plane + 1) * elems; ++i)
        to[i] = roundTo<T>(bias ? from[i] + added : from[i]);
    }
  });
}

/// While it lives, oneDNN and parallelFor use one thread, where that is asked for.
class OneThread {
public:
  explicit OneThread(bool isWanted) : before(isWanted ? threadCount() : 1) {
    if (before > 1)
      setThreadCount(1);
  }
  ~OneThread() {
    if (before > 1)
      setThreadCount(before);
  }
  OneThread(const OneThread &) = delete;

private:
  int before;
};

std::string_view statusName(dnnl_status_t status) {
  switch (status) {
  case dnnl_out_of_memory:
    return "out of memory";
  case dnnl_invalid_arguments:
    return "invalid arguments";
  case dnnl_unimplemented:
    return "unimplemented";
  default:
    return "runtime error";
  }
}

} // namespace

const dnnl::engine &engine() {
  static const dnnl::engine instance(dnnl::engine::kind::cpu, 0);
  return instance;
}

dnnl::memory::data_type dataType(DType type) {
  switch (type) {
  case DType::F32:
    return dnnl::memory::data_type::f32;
  case DType::BF16:
    return dnnl::memory::data_type::bf16;
  case DType::F16:
    return dnnl::memory::data_type::f16;
  default:
    throw Refusal{std::string(recast::name(type)) + " is not supported"};
  }
}

DType commonType(const StepSpec &spec) {
  DType type = spec.outputs[0].dtype;
  dataType(type);
  for (const TensorType &input : spec.inputs)
    if (input.present() && input.dtype != type)
      throw Refusal{"operands of different types"};
  return type;
}

dnnl::memory::desc plain(std::span<const int64_t> dims, DType type) {
  dnnl::memory::dims strides(dims.size());
  int64_t stride = 1;
  for (size_t d = dims.size(); d-- > 0; stride *= dims[d])
    strides[d] = stride;
  return {dimsOf(dims), dataType(type), strides};
}

dnnl::memory::desc anyLayout(std::span<const int64_t> dims, DType type) {
  return {dimsOf(dims), dataType(type), dnnl::memory::format_tag::any};
}

dnnl::primitive_attr attributes() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attr.set_fpmath_mode(dnnl::fpmath_mode::strict);
  return attr;
}

void requireOptimised(const dnnl::primitive_desc &descriptor) {
  std::string implementation = descriptor.impl_info_str();
  if (implementation.starts_with("ref"))
    throw Refusal{"only its unoptimised implementation (" + implementation + ") takes this"};
}

bool isSmall(const StepSpec &spec) {
  // 10 us at 25 multiply-adds a nanosecond, about what it takes to wake threads and to wait for them. In a product of
  // matrices the sizes of both operands and of the result multiply to the square of the number of multiply-adds.
  constexpr double kSmallProduct = 1 << 18;
  double square = static_cast<double>(spec.outputs[0].elems());
  for (size_t i = 0; i < std::min<size_t>(spec.inputs.size(), 2); ++i)
    square *= static_cast<double>(spec.inputs[i].elems());
  return square < kSmallProduct * kSmallProduct;
}

Operand Program::temporary(const dnnl::memory::desc &desc) {
  Operand operand{{Slot::Workspace, reservedBytes}, desc};
  reservedBytes += aligned(desc.get_size());
  return operand;
}

void Program::add(const dnnl::primitive &primitive, std::vector<std::pair<int, Operand>> arguments) {
  const_dnnl_primitive_desc_t handle = primitive.get_primitive_desc();
  const_dnnl_memory_desc_t scratchDesc = dnnl_primitive_desc_query_md(handle, dnnl_query_scratchpad_md, 0);
  size_t bytes = scratchDesc ? dnnl_memory_desc_get_size(scratchDesc) : 0;
  Action action{primitive, {}, {}, nullptr};
  auto bind = [&](int argument, const Slot &slot, const dnnl::memory::desc &desc) {
    dnnl::memory memory(desc, engine(), DNNL_MEMORY_NONE);
    action.handles.push_back({argument, memory.get()});
    action.arguments.push_back({slot, std::move(memory)});
  };
  for (const auto &[argument, operand] : arguments)
    bind(argument, operand.slot, operand.desc);
  if (bytes) {
    dnnl_memory_desc_t copy;
    dnnl::error::wrap_c_api(dnnl_memory_desc_clone(&copy, scratchDesc), "could not clone a memory descriptor");
    bind(DNNL_ARG_SCRATCHPAD, {Slot::Scratch, 0}, dnnl::memory::desc(copy));
    scratchBytes = std::max(scratchBytes, aligned(bytes));
  }
  actions.push_back(std::move(action));
}

Operand Program::inLayout(const Operand &from, const dnnl::memory::desc &desc) {
  if (from.desc == desc)
    return from;
  Operand to = temporary(desc);
  copy(from, to);
  return to;
}

void Program::copy(const Operand &from, const Operand &to) {
  if (from.slot.kind == to.slot.kind && from.slot.index == to.slot.index)
    return;
  dnnl::reorder::primitive_desc descriptor(engine(), from.desc, engine(), to.desc, attributes());
  add(dnnl::reorder(descriptor), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

Operand Program::load(size_t i, std::span<const int64_t> dims, DType to) {
  if (to == type)
    return {input(i), plain(dims, to)};
  Operand wide = temporary(plain(dims, DType::F32));
  int64_t count = elementCount(dims);
  add([this, i, slot = wide.slot, count](const KernelArgs &args) {
    dispatchFloat(type, [&]<typename T>() {
      if constexpr (sizeof(T) == 2)
        widen(args.inputs[i].as<T>(), static_cast<float *>(address(args, slot)), count);
    });
  });
  return wide;
}

Operand Program::target(const dnnl::memory::desc &desc, std::span<const int64_t> dims) {
  return desc == plain(dims, type) ? Operand{output(0), desc} : temporary(desc);
}

void Program::store(const Operand &from, std::span<const int64_t> dims, int bias) {
  if (from.desc.get_data_type() == dataType(type)) {
    copy(from, {output(0), plain(dims, type)});
    return;
  }
  Operand wide = inLayout(from, plain(dims, DType::F32));
  int64_t channels = bias < 0 ? 1 : dims[1], planes = bias < 0 ? elementCount(dims) / dims.back() : dims[0] * dims[1];
  add([this, slot = wide.slot, bias, planes, channels, elems = elementCount(dims) / planes](const KernelArgs &args) {
    dispatchFloat(type, [&]<typename T>() {
      if constexpr (sizeof(T) == 2)
        narrow(static_cast<const float *>(address(args, slot)),
               bias < 0 ? nullptr : args.inputs[static_cast<size_t>(bias)].as<T>(), args.outputs[0].as<T>(), planes,
               channels, elems);
    });
  });
}

void Program::add(std::function<void(const KernelArgs &)> loop) { actions.push_back({{}, {}, {}, std::move(loop)}); }

void *Program::address(const KernelArgs &args, const Slot &slot) const {
  switch (slot.kind) {
  case Slot::Input:
    return args.inputs[slot.index].data;
  case Slot::Output:
    return args.outputs[slot.index].data;
  case Slot::Workspace:
    return args.workspace.data() + slot.index;
  case Slot::Scratch:
    return args.workspace.data() + reservedBytes;
  }
  return nullptr;
}

Status Program::run(const KernelArgs &args) {
  OneThread guard(onOneThread);
  for (Action &action : actions) {
    if (action.loop) {
      action.loop(args);
      continue;
    }
    dnnl_status_t status = dnnl_success;
    for (Argument &argument : action.arguments)
      if (status == dnnl_success)
        status = dnnl_memory_set_data_handle(argument.memory.get(), address(args, argument.slot));
    // The C call takes the arguments as they are; the C++ one would build a map of them each time.
    if (status == dnnl_success)
      status = dnnl_primitive_execute(action.primitive.get(), stream().get(), static_cast<int>(action.handles.size()),
                                      action.handles.data());
    if (status != dnnl_success)
      return Status::error("node '" + name + "' (" + op +
                           "): dnnl_primitive_execute: " + std::string(statusName(status)));
  }
  return Status::success();
}

std::unique_ptr<Kernel> create(const StepSpec &spec, std::string &refusal) {
  const Maker *found = nullptr;
  for (const Maker &maker : kMakers)
    if (maker.domain == spec.domain && maker.op == spec.op)
      found = &maker;
  if (!found) {
    refusal = spec.op + " is not one of its operators";
    return nullptr;
  }
  for (const std::vector<TensorType> *list : {&spec.inputs, &spec.outputs})
    for (const TensorType &type : *list)
      if (type.present() && type.elems() == 0) {
        refusal = "an empty tensor";
        return nullptr;
      } else if (type.present() && std::ranges::any_of(type.dims, [](int64_t size) { return size > kLargestSize; })) {
        refusal = "a dimension of more than 2^31 - 1";
        return nullptr;
      }
  OneThread guard(isSmall(spec));
  try {
    return found->make(spec);
  } catch (const Refusal &why) {
    refusal = why.reason;
  } catch (const dnnl::error &error) {
    refusal = std::string(error.what()) + " (" + std::string(statusName(error.status)) + ")";
  }
  return nullptr;
}

} // namespace recast::onednn
