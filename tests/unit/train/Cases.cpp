// The table of cases: see TrainOp.h.
#include "tests/unit/train/TrainOp.h"

namespace recast::train::test {

namespace {

using Ints = std::vector<int64_t>;
constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

/// A tensor of the case's type in [-1, 1).
Operand tensor(Ints dims) { return {std::move(dims)}; }
Operand between(Ints dims, double low, double high) { return {std::move(dims), DType::Undefined, low, high}; }
Operand fixed(Ints dims, std::vector<double> values) {
  return {std::move(dims), DType::Undefined, 0, 0, std::move(values)};
}
/// A number of an optimizer or a clip.
Operand number(double value) { return {{}, DType::F64, 0, 0, {value}}; }
Operand f32(double value) { return {{}, DType::F32, 0, 0, {value}}; }
Operand flag(bool value) { return {{}, DType::Bool, 0, 0, {static_cast<double>(value)}}; }
Operand integer(int64_t value) { return {{}, DType::I64, 0, 0, {static_cast<double>(value)}}; }
Operand integers(Ints dims, std::vector<double> values) {
  return {std::move(dims), DType::I64, 0, 0, std::move(values)};
}
/// A shape, or a list of axes: an initializer.
Operand list(std::vector<double> values) {
  return {{static_cast<int64_t>(values.size())}, DType::I64, 0, 0, std::move(values), /*isConstant=*/true};
}
Operand absent() {
  Operand operand;
  operand.isAbsent = true;
  return operand;
}

std::vector<Attribute> window(Ints kernel, Ints strides, Ints dilations, Ints pads, std::vector<Attribute> more = {}) {
  std::vector<Attribute> attributes = {
      {"kernel_shape", kernel}, {"strides", strides}, {"dilations", dilations}, {"pads", pads}};
  attributes.insert(attributes.end(), more.begin(), more.end());
  return attributes;
}

std::vector<Case> convolutionCases() {
  return {
      {"conv_grad_input",
       {tensor({2, 4, 5, 5}), tensor({4, 3, 3, 3})},
       1,
       window({3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}, {{"group", int64_t(1)}, {"input_spatial", Ints{9, 9}}})},
      {"conv_grad_input",
       {tensor({1, 4, 4, 6}), tensor({4, 1, 3, 3})},
       1,
       window({3, 3}, {1, 1}, {2, 1}, {0, 0, 0, 0}, {{"group", int64_t(2)}, {"input_spatial", Ints{8, 8}}})},
      {"conv_grad_input",
       {tensor({2, 3, 4}), tensor({3, 2, 2})},
       1,
       window({2}, {2}, {1}, {0, 0}, {{"group", int64_t(1)}, {"input_spatial", Ints{9}}})},
      {"conv_grad_weight",
       {tensor({2, 3, 9, 9}), tensor({2, 4, 5, 5})},
       1,
       window({3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}, {{"group", int64_t(1)}})},
      {"conv_grad_weight",
       {tensor({1, 2, 8, 8}), tensor({1, 4, 4, 6})},
       1,
       window({3, 3}, {1, 1}, {2, 1}, {0, 0, 0, 0}, {{"group", int64_t(2)}})},
      {"conv_grad_weight",
       {tensor({2, 2, 9}), tensor({2, 3, 4})},
       1,
       window({2}, {2}, {1}, {0, 0}, {{"group", int64_t(1)}})},
      {"max_pool_grad",
       {tensor({2, 3, 3, 3}), tensor({2, 3, 6, 6})},
       1,
       window({2, 2}, {2, 2}, {1, 1}, {0, 0, 0, 0}, {{"ceil_mode", int64_t(0)}}),
       9},
      {"max_pool_grad",
       {tensor({2, 2, 4, 4}), tensor({2, 2, 7, 7})},
       1,
       window({3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}, {{"ceil_mode", int64_t(0)}}),
       10},
      {"average_pool_grad",
       {tensor({2, 3, 4, 4})},
       1,
       window({3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1},
              {{"ceil_mode", int64_t(0)}, {"count_include_pad", int64_t(0)}, {"input_spatial", Ints{7, 7}}})},
      {"average_pool_grad",
       {tensor({2, 3, 4})},
       1,
       window({3}, {2}, {1}, {1, 1},
              {{"ceil_mode", int64_t(0)}, {"count_include_pad", int64_t(1)}, {"input_spatial", Ints{8}}})},
  };
}

std::vector<Case> lossCases() {
  std::vector<Case> cases;
  for (const char *op : {"cross_entropy_grad", "nll_loss_grad"})
    for (const char *reduction : {"mean", "sum", "none"})
      for (bool isWeighted : {false, true}) {
        std::vector<Attribute> attributes = {{"reduction", std::string(reduction)}, {"ignore_index", int64_t(-100)}};
        bool perLabel = reduction == std::string("none");
        Case flat{op,
                  {tensor(perLabel ? Ints{4} : Ints{}), tensor({4, 5}), integers({4}, {0, 4, -100, 2})},
                  1,
                  attributes,
                  12};
        Case images{
            op,
            {tensor(perLabel ? Ints{2, 3} : Ints{}), tensor({2, 5, 3}), integers({2, 3}, {0, 4, -100, 2, 2, 1})},
            1,
            attributes,
            12};
        for (Case *c : {&flat, &images}) {
          if (isWeighted)
            c->operands.push_back(between({5}, 0.5, 2));
          cases.push_back(*c);
        }
      }
  return cases;
}

std::vector<Case> movementCases() {
  return {
      {"reduce_to", {tensor({2, 3, 4}), list({3, 1})}},
      {"reduce_to", {tensor({2, 3, 4}), list({})}},
      {"reduce_to", {tensor({2, 3, 4}), list({1, 3, 4})}},
      {"gather_grad", {tensor({2, 3, 4}), integers({3}, {4, 0, -1}), list({2, 5, 4})}, 1, {{"axis", int64_t(1)}}, 9},
      {"gather_grad",
       {tensor({2, 3, 4}), integers({2, 3}, {1, 1, 0, 4, -5, 1}), list({5, 4})},
       1,
       {{"axis", int64_t(0)}},
       9},
      {"gather_grad", {tensor({2, 4}), integers({}, {-2}), list({2, 5, 4})}, 1, {{"axis", int64_t(-2)}}, 9},
      {"slice_grad",
       {tensor({2, 2}), list({4, 5}), list({1, 4}), list({3, 0}), list({0, 1}), list({1, -2})},
       1,
       {},
       10},
      {"slice_grad", {tensor({4, 3}), list({4, 5}), list({-3}), list({100}), list({1})}, 1, {}, 10},
      {"pad_grad", {tensor({5, 6}), list({3, 4}), list({1, 0, 1, 2})}, 1, {{"mode", std::string("constant")}}, 11},
      {"pad_grad", {tensor({5, 6}), list({3, 4}), list({1, 0, 1, 2})}, 1, {{"mode", std::string("reflect")}}, 11},
      {"pad_grad", {tensor({5, 6}), list({3, 4}), list({1, 0, 1, 2})}, 1, {{"mode", std::string("edge")}}, 11},
      {"pad_grad", {tensor({3, 6}), list({3, 4}), list({1, 1}), list({1})}, 1, {{"mode", std::string("edge")}}, 18},
      {"pad_grad", {tensor({5, 6}), list({3, 4}), list({1, 0, 1, 2})}, 1, {{"mode", std::string("wrap")}}, 19},
  };
}

std::vector<Case> normCases() {
  std::vector<Attribute> last{{"axis", int64_t(-1)}, {"epsilon", 1e-5}};
  std::vector<Attribute> two{{"axis", int64_t(1)}, {"epsilon", 1e-2}};
  std::vector<Case> cases{
      {"layer_norm_grad", {tensor({3, 7, 5}), tensor({3, 7, 5}), tensor({5})}, 3, last},
      {"layer_norm_grad", {tensor({3, 7, 5}), tensor({3, 7, 5}), tensor({7, 5})}, 3, two},
      {"rms_norm_grad", {tensor({3, 7, 5}), tensor({3, 7, 5}), tensor({5})}, 2, last},
      {"rms_norm_grad", {tensor({3, 7, 5}), tensor({3, 7, 5}), tensor({7, 5})}, 2, two},
      {"batch_norm_grad", {tensor({4, 3, 5}), tensor({4, 3, 5}), tensor({3})}, 3, {{"epsilon", 1e-5}}},
      {"batch_norm_grad", {tensor({9, 3}), tensor({9, 3}), tensor({3})}, 3, {{"epsilon", 1e-3}}},
  };
  for (int64_t axis : {0, 1, -1}) {
    cases.push_back({"softmax_grad", {tensor({3, 4, 5}), between({3, 4, 5}, 0, 1)}, 1, {{"axis", axis}}});
    cases.push_back({"log_softmax_grad", {tensor({3, 4, 5}), between({3, 4, 5}, -4, 0)}, 1, {{"axis", axis}}});
  }
  return cases;
}

} // namespace

std::vector<Case> gradientCases() {
  std::vector<Case> all;
  for (const std::vector<Case> &part : {convolutionCases(), lossCases(), movementCases(), normCases()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<Case> stepCases() {
  std::vector<Case> cases{
      {"dropout_mask", {integer(7), list({3, 40}), number(0.3)}, 1, {{"offset", int64_t(3)}}, 9, {}},
      {"dropout_mask", {integer(-5), list({17}), number(0)}, 1, {{"offset", int64_t(0)}}, 9, {}},
      {"random_uniform", {integer(7), list({3, 40})}, 1, {{"offset", int64_t(3)}}, 9, {}},
      {"random_uniform", {integer(-5), list({17})}, 1, {{"offset", int64_t(0)}}, 9, {}},
      {"scale_loss", {tensor({}), f32(1024)}},
      {"unscale", {tensor({3, 4}), tensor({5}), f32(0.75)}, 3},
      {"unscale", {fixed({3}, {1, kInf, 2}), tensor({5}), f32(8)}, 3},
      {"unscale", {tensor({3}), fixed({2}, {1, kNaN}), f32(8)}, 3},
      {"check_finite", {tensor({3, 4}), tensor({})}},
      {"check_finite", {tensor({3, 4}), fixed({2}, {0, -kInf})}},
      {"check_finite", {fixed({2}, {kNaN, 0}), tensor({2})}},
      {"grad_stats", {tensor({3, 4}), fixed({3}, {0, 1e-3, 0.5}), number(0.25)}, 4, {}, 9},
      {"grad_stats", {tensor({3, 4}), fixed({2}, {-kInf, 0.5}), number(0.25)}, 4, {}, 9},
      {"grad_stats", {fixed({4}, {0.5, kNaN, -0.75, 1e-3}), tensor({5}), number(0.25)}, 4, {}, 9},
      {"clip_grad_value", {tensor({3, 4}), fixed({4}, {kInf, kNaN, -kInf, 0.25}), number(0.5)}, 2, {}, 9},
      {"clip_grad_value", {tensor({3, 4}), number(0)}, 1, {}, 9},
      {"keep_if", {flag(false), tensor({3}), tensor({3})}},
      {"keep_if", {flag(true), tensor({3}), tensor({3})}},
      {"keep_if", {flag(true), integer(3), integer(4)}, 1, {}, 7, {}},
      {"window_sum", {tensor({})}},
      {"all_reduce", {tensor({3, 4}), tensor({}), tensor({2})}, 3, {{"maxima", int64_t(2)}}},
      {"rank", {}, 1, {}, 7, {}},
      {"offload", {tensor({3, 4})}},
      {"fetch", {tensor({3, 4})}},
  };
  const std::vector<std::vector<Attribute>> orders = {
      {}, {{"norm_type", 1.0}}, {{"norm_type", kInf}}, {{"norm_type", 3.0}}, {{"norm_type", 2.5}}};
  for (const std::vector<Attribute> &order : orders)
    for (const std::vector<double> &last : {std::vector<double>{0.5, -0.25}, {kInf, 1}, {1, kNaN}, {0, 0}}) {
      cases.push_back({"grad_norm", {tensor({3, 4}), fixed({2}, last)}, 1, order});
      for (double limit : {0.5, 100.0, 0.0})
        cases.push_back({"clip_grad_norm", {tensor({3, 4}), fixed({2}, last), number(limit)}, 3, order});
    }
  // found_inf loss_scale good_steps growth backoff interval min max hysteresis_left? hysteresis?
  for (bool found : {false, true})
    for (int64_t good : {0, 4}) {
      std::vector<Operand> operands{flag(found), f32(3e38),  integer(good), number(1.7),
                                    number(0.3), integer(5), f32(1e38),     f32(kInf)};
      cases.push_back({"update_loss_scale", operands, 2, {}, 7, {}});
      operands[1] = f32(1024), operands[6] = f32(600), operands[7] = f32(1500);
      cases.push_back({"update_loss_scale", operands, 2, {}, 7, {}});
      for (int64_t left : {0, 1, 2, 3}) {
        std::vector<Operand> patient = operands;
        patient.push_back(integer(left));
        patient.push_back(integer(3));
        cases.push_back({"update_loss_scale", patient, 3, {}, 7, {}});
      }
    }
  return cases;
}

std::vector<Case> optimizerCases() {
  std::vector<Case> cases;
  const Ints dims{5, 7};
  // skip, parameter, gradient, state..., numbers...; with gradients that are not finite where the step is skipped.
  auto add = [&](const char *op, std::vector<Operand> state, std::vector<Operand> numbers,
                 std::vector<Attribute> attributes = {}) {
    unsigned results = 1;
    for (const std::vector<Operand> *part : {&state, &numbers})
      for (const Operand &operand : *part)
        results += !operand.isAbsent && (part == &state || operand.dtype == DType::Undefined);
    for (bool skip : {false, true}) {
      Operand gradient = tensor(dims);
      if (skip)
        gradient.values.assign(35, kNaN);
      std::vector<Operand> operands{flag(skip), tensor(dims), gradient};
      for (const std::vector<Operand> *part : {&state, &numbers})
        operands.insert(operands.end(), part->begin(), part->end());
      cases.push_back({op, operands, results, attributes});
    }
  };
  Operand moment = tensor(dims), squares = between(dims, 0.01, 1), large = between(dims, 0.2, 0.5);
  for (int64_t step : {1, 2, 30}) {
    std::vector<Operand> adam{integer(step), number(0.01), number(0.9), number(0.99), number(1e-3), number(0.1)};
    for (const char *op : {"adamw", "adam"}) {
      add(op, {moment, squares}, adam);
      std::vector<Operand> amsgrad = adam;
      amsgrad.push_back(large);
      add(op, {moment, squares}, amsgrad);
    }
    std::vector<Operand> nadam = adam;
    nadam.push_back(number(4e-3));
    for (int64_t decoupled : {0, 1}) {
      add("nadam", {moment, squares, f32(0.25)}, nadam, {{"decoupled_weight_decay", decoupled}});
      add("radam", {moment, squares}, adam, {{"decoupled_weight_decay", decoupled}});
    }
    add("adagrad", {squares}, {integer(step), number(0.1), number(0.05), number(1e-3), number(0.1)});
    for (int64_t nesterov : {0, 1})
      for (double momentum : {0.0, 0.9})
        add("sgd", {moment}, {integer(step), number(0.1), number(momentum), number(0.25), number(0.1)},
            {{"nesterov", nesterov}});
    for (bool skip : {false, true})
      for (double decay : {0.999, 0.5, 0.25, 0.0})
        cases.push_back({"ema", {flag(skip), tensor(dims), tensor(dims), integer(step), number(decay)}});
  }
  add("sgd", {absent()}, {integer(3), number(0.1), number(0), number(0), number(0.1)}, {{"nesterov", int64_t(0)}});
  std::vector<Operand> rmsprop{number(0.01), number(0.9), number(1e-2), number(0.1), number(0.8)};
  // A variance that is not negative: the mean is smaller than the root of the mean square.
  Operand mean = between(dims, -0.1, 0.1), squaresAbove = between(dims, 0.5, 1);
  add("rmsprop", {squares, absent(), absent()}, rmsprop);
  add("rmsprop", {squares, absent(), moment}, rmsprop);
  add("rmsprop", {squaresAbove, mean, absent()}, rmsprop);
  add("rmsprop", {squaresAbove, mean, moment}, rmsprop);
  add("lion", {moment}, {number(0.01), number(0.9), number(0.99), number(0.1)});
  return cases;
}

std::vector<Case> precisionCases() {
  constexpr int64_t kE4M3 = 17, kE5M2 = 19, kFloat = 1, kSince = 19;
  std::vector<Case> cases = {
      // Ties to even at 2^-11 of the first digit, both ways; what rounds up to a power of two; no numbers.
      {"round_tf32",
       {fixed({8}, {1 + 0x1p-11, 1 + 0x1p-10 + 0x1p-11, 2 - 0x1p-12, -3.14159, 0, kInf, -kInf, kNaN})},
       1,
       {},
       9,
       {DType::F32}},
      {"round_tf32", {tensor({3, 5})}, 1, {}, 9, {DType::F32}},
  };
  for (int64_t to : {kE4M3, kE5M2}) {
    // Beyond the largest number, below the smallest, and infinite.
    for (double scale : {1.0, 300.0, 1e6})
      cases.push_back({"quantize_fp8",
                       {fixed({6}, {0.3, -1, 1e-7, 0, 0.9, -0.01}), f32(scale)},
                       2,
                       {{"to", to}},
                       kSince,
                       {DType::F32, DType::BF16}});
    cases.push_back({"quantize_fp8", {fixed({4}, {kInf, -kInf, 2, 1}), f32(1)}, 2, {{"to", to}}, kSince, {DType::F32}});
    for (const char *rule : {"exact", "pow2", "mx_floor"})
      for (const Ints &tile : {Ints{0, 0}, Ints{1, 4}, Ints{2, 4}, Ints{1, 0}})
        cases.push_back({"quantize_fp8_tiles",
                         {tensor({3, 10})},
                         2,
                         {{"to", to}, {"tile", tile}, {"rule", std::string(rule)}, {"scale_type", kFloat}},
                         kSince,
                         {DType::F32, DType::BF16}});
    DType q = to == kE4M3 ? DType::F8E4M3FN : DType::F8E5M2;
    cases.push_back(
        {"dequantize_fp8", {{{3, 10}, q}, {{3, 3}, DType::F32, 0.5, 2}}, 1, {{"tile", Ints{1, 4}}}, kSince, {}});
    for (const char *algorithm : {"max", "most_recent"})
      for (const char *nan : {"propagate", "ignore"})
        for (double amax : {0.0, 3.0, kInf, kNaN})
          for (bool skip : {false, true})
            cases.push_back(
                {"update_amax",
                 {flag(skip), {{4}, DType::F32, 0, 0, {0, 1, kNaN, 2}}, f32(8), f32(amax)},
                 2,
                 {{"to", to}, {"algorithm", std::string(algorithm)}, {"margin", int64_t(1)}, {"nan", std::string(nan)}},
                 kSince,
                 {}});
  }
  return cases;
}

} // namespace recast::train::test
