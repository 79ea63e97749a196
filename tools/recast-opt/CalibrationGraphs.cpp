#include "tools/recast-opt/CalibrationGraphs.h"
#include "ir/onnx/Builder.h"
#include "ir/train/Dialect.h"
#include "mlir/IR/Diagnostics.h"
#include <optional>

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::tools {

namespace {

constexpr int64_t kOpset = 23;
constexpr int64_t kRow = 64; ///< Elements of a row that is reduced or normalised.

/// A graph in the making: its inputs, and a builder for its nodes. Everything that is made is an output.
class Graph {
public:
  using Dims = ArrayRef<int64_t>;

  explicit Graph(MLIRContext &context) : module(ModuleOp::create(UnknownLoc::get(&context))) {
    OpBuilder builder = OpBuilder::atBlockEnd(module->getBody());
    Attribute opset[] = {builder.getStringAttr(""), builder.getI64IntegerAttr(kOpset)};
    (*module)->setAttr("onnx.opsets", builder.getArrayAttr(builder.getArrayAttr(opset)));
    graph = GraphOp::create(builder, builder.getUnknownLoc(),
                            builder.getDictionaryAttr(builder.getNamedAttr("inputs", builder.getArrayAttr({}))));
    builder.createBlock(&graph.getBody());
    ReturnOp::create(builder, builder.getUnknownLoc(), ValueRange());
    names.emplace(graph);
    b.emplace(graph, *names, types);
  }

  Value input(Dims dims, Type element) {
    Block &block = graph.getBody().front();
    Value value = block.addArgument(RankedTensorType::get(dims, element), UnknownLoc::get(graph.getContext()));
    setName(value, "x" + std::to_string(block.getNumArguments()));
    return value;
  }
  Value floats(Dims dims) { return input(dims, type); }
  Value f32(Dims dims) { return input(dims, b->rewriter().getF32Type()); }
  Value numbers(Dims dims) { return input(dims, b->rewriter().getI64Type()); }
  Value flag() { return input({}, b->rewriter().getI1Type()); }
  Value number() { return input({}, b->rewriter().getF64Type()); }

  void op(StringRef name, ArrayRef<Value> inputs, ArrayRef<NamedAttribute> attrs = {}, unsigned outputs = 1) {
    add(b->node(name, inputs, outputs, attrs));
  }
  void add(Operation *made) {
    Operation *end = graph.getBody().front().getTerminator();
    end->insertOperands(end->getNumOperands(), made->getResults());
  }
  template <typename T> NamedAttribute attr(StringRef name, T value) { return b->attr(name, value); }
  NamedAttribute list(StringRef name, ArrayRef<int64_t> values) { return b->attr(name, values); }
  Value ints(ArrayRef<int64_t> values) { return b->ints(values); }

  OwningOpRef<ModuleOp> take() { return std::move(module); }
  bool failed() const { return b->failed(); }

  Type type;         ///< Of floats().
  int64_t elems = 0; ///< What most tensors hold, about: a multiple of 4 * kRow.
  int64_t side = 0;  ///< Of matrices.
  int64_t image = 0; ///< Height and width; channels are half of it.
  std::optional<NodeBuilder> b;

private:
  OwningOpRef<ModuleOp> module;
  GraphOp graph;
  std::optional<NameScope> names;
  TypeInference types;
};

using Build = void (*)(Graph &);

constexpr Build kProducts[] = {
    [](Graph &g) { g.op("MatMul", {g.floats({g.side, g.side}), g.floats({g.side, g.side})}); },
    [](Graph &g) { g.op("MatMul", {g.floats({4 * g.side, g.side}), g.floats({g.side, g.side / 4})}); },
    [](Graph &g) { g.op("MatMul", {g.floats({8, g.side / 2, g.side / 4}), g.floats({8, g.side / 4, g.side / 2})}); },
    [](Graph &g) {
      g.op("Gemm", {g.floats({g.side, g.side}), g.floats({g.side, g.side}), g.floats({g.side})},
           {g.attr("transB", int64_t(1))});
    },
    [](Graph &g) {
      g.op("Einsum", {g.floats({4, g.side / 2, g.side / 4}), g.floats({4, g.side / 4, g.side / 2})},
           {g.attr("equation", StringRef("bij,bjk->bik"))});
    },
    [](Graph &g) {
      Value x[3];
      for (Value &value : x)
        value = g.floats({2, 4, g.side / 4, 32});
      g.op("Attention", x);
    },
    [](Graph &g) {
      int64_t channels = g.image / 2;
      g.op("Conv", {g.floats({2, channels, g.image, g.image}), g.floats({channels, channels, 3, 3})},
           {g.list("pads", {1, 1, 1, 1})});
    },
    [](Graph &g) {
      int64_t channels = g.image / 2;
      g.op("Conv", {g.floats({2, channels, g.image, g.image}), g.floats({channels, 1, 3, 3})},
           {g.list("pads", {1, 1, 1, 1}), g.attr("group", channels)});
    },
    [](Graph &g) {
      int64_t channels = g.image / 2;
      g.op("ConvTranspose", {g.floats({2, channels, g.image, g.image}), g.floats({channels, channels, 3, 3})});
    },
    [](Graph &g) {
      int64_t channels = g.image / 2;
      g.op("train.conv_grad_input", {g.floats({2, channels, g.image, g.image}), g.floats({channels, channels, 3, 3})},
           {g.list("kernel_shape", {3, 3}), g.list("strides", {1, 1}), g.list("dilations", {1, 1}),
            g.list("pads", {1, 1, 1, 1}), g.attr("group", int64_t(1)), g.list("input_spatial", {g.image, g.image})});
    },
    [](Graph &g) {
      int64_t channels = g.image / 2;
      g.op("train.conv_grad_weight",
           {g.floats({2, channels, g.image, g.image}), g.floats({2, channels, g.image, g.image})},
           {g.list("kernel_shape", {3, 3}), g.list("strides", {1, 1}), g.list("dilations", {1, 1}),
            g.list("pads", {1, 1, 1, 1}), g.attr("group", int64_t(1))});
    },
};

/// Element-wise operators that take tensors of one shape and no attributes: all of the dialect's whose schema says so.
void elementwise(Graph &g) {
  for (RegisteredOperationName name : g.type.getContext()->getRegisteredOperations()) {
    auto *node = name.getInterface<NodeInterface>();
    if (!node || node->facts().work != Work::Elementwise || name.getDialectNamespace() != "onnx")
      continue;
    const onnx::OpSchema *schema = onnx::OpSchemaRegistry::Schema(name.stripDialect().str(), kOpset, "");
    bool isPlain = schema && schema->min_input() >= 1 && schema->max_output() == 1;
    for (const auto &[key, attribute] :
         isPlain ? schema->attributes() : std::unordered_map<std::string, onnx::OpSchema::Attribute>())
      isPlain &= !attribute.required;
    if (!isPlain)
      continue;
    SmallVector<Value> operands;
    for (int i = 0; i < schema->min_input(); ++i)
      operands.push_back(g.floats({g.elems}));
    g.op(name.stripDialect(), operands);
  }
}

Value rows(Graph &g) { return g.floats({g.elems / kRow, kRow}); }
Value images(Graph &g) { return g.floats({2, g.elems / (2 * kRow), 8, 8}); }
Value halves(Graph &g) { return g.floats({2, g.elems / (2 * kRow), 4, 4}); }

void optimizer(Graph &g, StringRef name, unsigned moments, unsigned numbers, bool hasStep) {
  SmallVector<Value> inputs{g.flag(), g.f32({g.elems}), g.f32({g.elems})};
  for (unsigned i = 0; i < moments; ++i)
    inputs.push_back(g.f32({g.elems}));
  if (hasStep)
    inputs.push_back(g.numbers({}));
  for (unsigned i = 0; i < numbers; ++i)
    inputs.push_back(g.number());
  g.op(name, inputs, {}, moments + 1);
}

constexpr Build kOthers[] = {
    elementwise,
    [](Graph &g) {
      g.op("Where", {g.input({g.elems}, g.b->rewriter().getI1Type()), g.floats({g.elems}), g.floats({g.elems})});
    },
    [](Graph &g) { g.op("Cast", {g.f32({g.elems})}, {g.attr("to", int64_t(elementTypeToOnnx(g.type)))}); },
    [](Graph &g) { g.op("Cast", {g.floats({g.elems})}, {g.attr("to", int64_t(onnx::TensorProto::FLOAT))}); },
    // Reductions.
    [](Graph &g) {
      for (StringRef op : {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare",
                           "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"})
        g.add(g.b->reduce(op, rows(g), {1}, /*keepDims=*/false).getDefiningOp());
    },
    [](Graph &g) { g.op("CumSum", {rows(g), g.b->intScalar(1)}); },
    [](Graph &g) { g.op("ArgMax", {rows(g)}, {g.attr("axis", int64_t(1))}); },
    [](Graph &g) { g.op("train.reduce_to", {rows(g), g.ints({kRow})}); },
    [](Graph &g) { g.op("Softmax", {rows(g)}); },
    [](Graph &g) { g.op("LogSoftmax", {rows(g)}); },
    [](Graph &g) { g.op("train.softmax_grad", {rows(g), rows(g)}, {g.attr("axis", int64_t(-1))}); },
    [](Graph &g) { g.op("train.log_softmax_grad", {rows(g), rows(g)}, {g.attr("axis", int64_t(-1))}); },
    [](Graph &g) { g.op("LayerNormalization", {rows(g), g.floats({kRow}), g.floats({kRow})}); },
    [](Graph &g) { g.op("RMSNormalization", {rows(g), g.floats({kRow})}); },
    [](Graph &g) {
      g.op("train.layer_norm_grad", {rows(g), rows(g), g.floats({kRow})},
           {g.attr("axis", int64_t(-1)), g.attr("epsilon", 1e-5)}, 3);
    },
    [](Graph &g) {
      g.op("train.rms_norm_grad", {rows(g), rows(g), g.floats({kRow})},
           {g.attr("axis", int64_t(-1)), g.attr("epsilon", 1e-5)}, 2);
    },
    [](Graph &g) {
      int64_t channels = g.elems / (2 * kRow);
      Value c[4];
      for (Value &value : c)
        value = g.floats({channels});
      g.op("BatchNormalization", {images(g), c[0], c[1], c[2], c[3]}, {g.attr("training_mode", int64_t(1))}, 3);
      g.op("InstanceNormalization", {images(g), c[0], c[1]});
      g.op("GroupNormalization", {images(g), c[0], c[1]}, {g.attr("num_groups", int64_t(2))});
      g.op("train.batch_norm_grad", {images(g), images(g), c[0]}, {g.attr("epsilon", 1e-5)}, 3);
    },
    // Pools.
    [](Graph &g) {
      SmallVector<NamedAttribute> window{g.list("kernel_shape", {2, 2}), g.list("strides", {2, 2})};
      g.op("MaxPool", {images(g)}, window);
      g.op("AveragePool", {images(g)}, window);
      g.op("GlobalAveragePool", {images(g)});
      window.append({g.list("pads", {0, 0, 0, 0}), g.list("dilations", {1, 1}), g.attr("ceil_mode", int64_t(0))});
      g.op("train.max_pool_grad", {halves(g), images(g)}, window);
      window.append({g.attr("count_include_pad", int64_t(0)), g.list("input_spatial", {8, 8})});
      g.op("train.average_pool_grad", {halves(g)}, window);
    },
    // Losses.
    [](Graph &g) {
      Value labels = g.numbers({g.elems / kRow});
      SmallVector<NamedAttribute> attrs{g.attr("reduction", StringRef("mean")), g.attr("ignore_index", int64_t(-100))};
      g.op("SoftmaxCrossEntropyLoss", {rows(g), labels}, attrs);
      g.op("NegativeLogLikelihoodLoss", {rows(g), labels}, attrs);
      g.op("train.cross_entropy_grad", {g.floats({}), rows(g), labels}, attrs);
      g.op("train.nll_loss_grad", {g.floats({}), rows(g), labels}, attrs);
    },
    // Moves.
    [](Graph &g) {
      int64_t count = g.elems / kRow;
      g.op("Transpose", {rows(g)}, {g.list("perm", {1, 0})});
      g.op("Transpose", {g.floats({2, count / 4, 2, kRow})}, {g.list("perm", {0, 2, 1, 3})});
      g.op("Concat", {rows(g), rows(g)}, {g.attr("axis", int64_t(1))});
      g.op("Split", {rows(g)}, {g.attr("axis", int64_t(1)), g.attr("num_outputs", int64_t(2))}, 2);
      g.op("Slice", {rows(g), g.ints({0}), g.ints({kRow / 2}), g.ints({1})});
      g.op("Pad", {rows(g), g.ints({0, 1, 0, 1})});
      g.op("Expand", {g.floats({1, kRow}), g.ints({count, kRow})});
      g.op("Tile", {g.floats({1, kRow}), g.ints({count, 1})});
      g.op("Trilu", {g.floats({count / 4, 16, 16})});
      g.op("Gather", {rows(g), g.numbers({count})});
      g.op("GatherElements", {rows(g), g.numbers({count, kRow})}, {g.attr("axis", int64_t(1))});
      g.op("ScatterElements", {rows(g), g.numbers({count, 1}), g.floats({count, 1})}, {g.attr("axis", int64_t(1))});
      g.op("train.gather_grad", {rows(g), g.numbers({count}), g.ints({count, kRow})}, {g.attr("axis", int64_t(0))});
      g.op("train.slice_grad",
           {g.floats({count, kRow / 2}), g.ints({count, kRow}), g.ints({0}), g.ints({kRow / 2}), g.ints({1})});
      g.op("train.pad_grad", {rows(g), g.ints({count, kRow - 2}), g.ints({0, 1, 0, 1})},
           {g.attr("mode", StringRef("constant"))});
      g.op("ConstantOfShape", {g.ints({count, kRow})});
    },
    // The step around the gradients.
    [](Graph &g) {
      g.op("train.dropout_mask", {g.numbers({}), g.ints({g.elems}), g.f32({})}, {g.attr("offset", int64_t(0))});
    },
    [](Graph &g) { g.op("train.grad_norm", {rows(g), rows(g)}); },
    [](Graph &g) { g.op("train.grad_stats", {rows(g), rows(g), g.floats({})}, {}, 4); },
    [](Graph &g) { g.op("train.check_finite", {rows(g), rows(g)}); },
    [](Graph &g) { g.op("train.clip_grad_norm", {rows(g), rows(g), g.number()}, {}, 3); },
    [](Graph &g) { g.op("train.clip_grad_value", {rows(g), rows(g), g.number()}, {}, 2); },
    [](Graph &g) {
      Value scaled = g.b->node("train.mark_scaled", {rows(g)});
      g.op("train.unscale", {scaled, g.f32({})}, {}, 2);
    },
    [](Graph &g) { g.op("train.keep_if", {g.flag(), rows(g), rows(g)}); },
    [](Graph &g) { g.op("train.round_tf32", {g.f32({g.elems})}); },
    [](Graph &g) {
      NamedAttribute to = g.attr("to", int64_t(onnx::TensorProto::FLOAT8E4M3FN));
      g.op("train.quantize_fp8", {rows(g), g.f32({})}, {to}, 2);
      g.op("train.dequantize_fp8",
           {g.b->node("train.quantize_fp8", {rows(g), g.f32({})}, 2, {to})->getResult(0), g.f32({})});
    },
    [](Graph &g) {
      optimizer(g, "train.adamw", 2, 5, true);
      optimizer(g, "train.adam", 2, 5, true);
      optimizer(g, "train.radam", 2, 5, true);
      optimizer(g, "train.adagrad", 1, 4, true);
      optimizer(g, "train.rmsprop", 3, 5, false);
      optimizer(g, "train.lion", 1, 4, false);
      optimizer(g, "train.sgd", 1, 4, true);
      g.op("train.ema", {g.flag(), g.f32({g.elems}), g.f32({g.elems}), g.numbers({}), g.number()});
    },
};

/// Of the operations that a graph holds, one to a graph: what the runtime cannot run must not hide the rest.
void forEachOperation(ModuleOp module, llvm::function_ref<void(ModuleOp)> measure) {
  Block &all = mainGraph(module).getBody().front();
  for (unsigned i = 0; i < all.getTerminator()->getNumOperands();) {
    Operation *wanted = all.getTerminator()->getOperand(i).getDefiningOp();
    OwningOpRef<ModuleOp> copy(cast<ModuleOp>(module->clone()));
    Operation *end = mainGraph(*copy).getBody().front().getTerminator();
    end->eraseOperands(0, i);
    end->eraseOperands(wanted->getNumResults(), end->getNumOperands() - wanted->getNumResults());
    i += wanted->getNumResults();
    measure(*copy);
  }
}

void build(MLIRContext &context, Build what, Type type, size_t size, llvm::function_ref<void(ModuleOp)> measure) {
  // The largest take some milliseconds: long enough to show a rate, short enough to run undisturbed now and then.
  constexpr int64_t kElems[] = {1 << 8, 1 << 13, 1 << 18}, kSides[] = {16, 128, 512}, kImages[] = {8, 16, 48};
  ScopedDiagnosticHandler quiet(&context, [](Diagnostic &) { return success(); });
  Graph graph(context);
  graph.type = type;
  graph.elems = kElems[size];
  graph.side = kSides[size];
  graph.image = kImages[size];
  what(graph);
  forEachOperation(*graph.take(), measure);
}

} // namespace

void forEachCalibrationGraph(MLIRContext &context, llvm::function_ref<void(ModuleOp)> measure) {
  Builder b(&context);
  Type types[] = {b.getF32Type(), b.getBF16Type(), b.getF16Type(), b.getF64Type()};
  for (size_t size = 0; size < 3; ++size)
    for (Type type : types) {
      for (Build what : kProducts)
        build(context, what, type, size, measure);
      for (Build what : kOthers)
        if (!type.isF64()) // An oracle's type: its peaks are f32's but for products.
          build(context, what, type, size, measure);
    }
}

OwningOpRef<ModuleOp> overheadGraph(MLIRContext &context, int64_t count) {
  Graph graph(context);
  Value value = graph.f32({});
  for (int64_t i = 0; i < count; ++i)
    value = graph.b->neg(value);
  graph.add(value.getDefiningOp());
  return graph.take();
}

OwningOpRef<ModuleOp> copyGraph(MLIRContext &context, int64_t bytes) {
  Graph graph(context);
  int64_t half = bytes / 8;
  graph.op("Concat", {graph.f32({half}), graph.f32({half})}, {graph.attr("axis", int64_t(0))});
  return graph.take();
}

} // namespace recast::tools
