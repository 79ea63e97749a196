// Profiles: what is read, what is refused, and times by hand.
#include "ir/cost/Profile.h"
#include "tests/unit/cost/CostTest.h"
#include <gmock/gmock.h>

namespace recast::cost {
namespace {

using test::Graph;
using testing::HasSubstr;

/// 10 GB/s, 2 GB/s for moves, 100 ns a step.
std::string profileText(const std::string &operators = "[]", const std::string &overhead = "100",
                        const std::string &product = R"({"f32": 50, "bf16": 200})") {
  return R"({"version": 1, "machine": "test", "threads": 2, "step_overhead_ns": )" + overhead +
         R"(, "memory_gb_per_s": 10, "moves_gb_per_s": 2, "peaks_gflop_per_s": {"product": )" + product +
         R"(, "convolution": {"f32": 40}, "element-wise": {"f32": 1}, "reduction": {"f32": 1}}, "operators": )" +
         operators + "}";
}

Profile profile(const std::string &text) { return llvm::cantFail(parseProfile(text)); }

std::string errorOf(const std::string &text) {
  auto parsed = parseProfile(text);
  return parsed ? "" : llvm::toString(parsed.takeError());
}

double product(int64_t flops, int64_t bytes, llvm::StringRef type, const Profile &profile) {
  return timeNs("MatMul", {flops, bytes, 0, Work::Product, type, Known::Yes}, profile);
}

TEST(Profile, TheSlowerOfArithmeticAndBytesCounts) {
  Profile p = profile(profileText());
  EXPECT_DOUBLE_EQ(product(5000, 10, "f32", p), 100 + 5000 / 50.0);
  EXPECT_DOUBLE_EQ(product(5000, 10000, "f32", p), 100 + 10000 / 10.0);
  EXPECT_DOUBLE_EQ(product(5000, 10, "bf16", p), 100 + 5000 / 200.0);
  // A type without a peak is as fast as f32.
  EXPECT_DOUBLE_EQ(product(5000, 10, "f8", p), 100 + 5000 / 50.0);
  EXPECT_DOUBLE_EQ(timeNs("Transpose", {0, 1000, 1000, Work::Move, "f32", Known::Yes}, p), 100 + 2000 / 2.0);
  EXPECT_EQ(timeNs("Reshape", {0, 1000, 1000, Work::Nothing, "f32", Known::Yes}, p), 0);
}

TEST(Profile, CopiesToTheHost) {
  Cost copy{0, 1000, 1000, Work::Move, "f32", Known::Yes};
  // In one memory each byte is read and written.
  EXPECT_DOUBLE_EQ(timeNs("recast::offload", copy, profile(profileText())), 100 + 2 * 1000 / 10.0);
  std::string given = profileText();
  given.insert(1, R"("host_gb_per_s": 4, "host_latency_ns": 7000, )");
  EXPECT_DOUBLE_EQ(timeNs("recast::fetch", copy, profile(given)), 7000 + 1000 / 4.0);
  EXPECT_DOUBLE_EQ(transferNs(1000, profile(toJson(profile(given)))), 7000 + 1000 / 4.0);
  EXPECT_FALSE(profile(toJson(profile(given))).hostCopiesOverlap);
  given.insert(1, R"("host_copies_overlap": true, )");
  EXPECT_TRUE(profile(toJson(profile(given))).hostCopiesOverlap);
  std::string half = profileText();
  half.insert(1, R"("host_gb_per_s": 4, )");
  EXPECT_THAT(errorOf(half), HasSubstr("host_latency_ns"));
}

TEST(Profile, WhatWasMeasuredCountsInstead) {
  Profile p = profile(profileText(
      R"([{"operator": "MatMul", "type": "f32", "per": "flop", "points": [[1000, 300], [2000, 700], [6000, 1900]]},
          {"operator": "recast::adamw", "type": "f32", "per": "byte", "points": [[1000, 5000]]}])"));
  EXPECT_DOUBLE_EQ(product(1000, 1, "f32", p), 300);
  EXPECT_DOUBLE_EQ(product(1500, 1, "f32", p), 500);
  EXPECT_DOUBLE_EQ(product(500, 1, "f32", p), 200);                          // from the overhead up
  EXPECT_DOUBLE_EQ(product(11000, 1, "f32", p), 1900 + 5000 * 1600 / 5000.); // on with the slope of all
  EXPECT_DOUBLE_EQ(product(1000, 1, "tf32", p), 300);                        // on a CPU
  EXPECT_DOUBLE_EQ(product(1000, 1, "bf16", p), 100 + 5);                    // another type: not measured
  Cost update{7, 1000, 1000, Work::Elementwise, "f32", Known::Yes};
  EXPECT_DOUBLE_EQ(timeNs("recast::adamw", update, p), 5000 + 4900);
}

TEST(Profile, BodiesTakeTheirTimeAsOftenAsTheyRun) {
  Profile p = profile(profileText());
  Graph graph(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[100] h, float[5,100] xs) => (float[100] last) {
      last = Scan <num_scan_inputs = 1, body = step (float[100] state, float[100] x) => (float[100] next) {
        next = Add(state, x)
      }> (h, xs)
    })");
  EXPECT_DOUBLE_EQ(timeNs(graph.op(), p), 5 * (100 + 1200 / 10.0));
}

TEST(Profile, WritingAndReadingGivesTheSame) {
  Profile p = defaultProfile();
  std::string text = toJson(p);
  Profile again = profile(text);
  EXPECT_EQ(toJson(again), text);
  EXPECT_EQ(again.operators.size(), p.operators.size());
  EXPECT_EQ(again.gflops, p.gflops);
}

TEST(Profile, TheDefaultSaysWhereItWasMeasured) {
  EXPECT_FALSE(defaultProfile().machine.empty());
  EXPECT_GT(defaultProfile().operators.size(), 0u);
}

TEST(Profile, ErrorsSayWhatIsWrongWhere) {
  EXPECT_EQ(errorOf(profileText()), "");
  EXPECT_NE(errorOf("{"), "");
  EXPECT_THAT(errorOf("[]"), HasSubstr("expected object"));
  EXPECT_THAT(errorOf(R"({"version": 2, "machine": "", "threads": 1})"), HasSubstr("profile.version"));
  EXPECT_THAT(errorOf(R"({"version": 1, "machine": "m", "threads": 1})"), HasSubstr("profile.step_overhead_ns"));
  for (const char *bad : {"0", "-1", "\"fast\"", "null", "1e999"})
    EXPECT_THAT(errorOf(profileText("[]", bad)), HasSubstr("step_overhead_ns")) << bad;
  EXPECT_THAT(errorOf(profileText("[]", "1", R"({"bf16": 3})")), HasSubstr("peaks_gflop_per_s.product"));
  auto entry = [](const std::string &per, const std::string &points) {
    return errorOf(
        profileText(R"([{"operator": "Add", "type": "f32", "per": ")" + per + R"(", "points": )" + points + "}]"));
  };
  EXPECT_EQ(entry("byte", "[[1, 2], [2, 2]]"), "");
  EXPECT_THAT(entry("hour", "[[1, 2]]"), HasSubstr("operators[0].per"));
  EXPECT_THAT(entry("byte", "[]"), HasSubstr("operators[0].points"));
  EXPECT_THAT(entry("byte", "[[1, 2], [1, 3]]"), HasSubstr("must ascend"));
  EXPECT_THAT(entry("byte", "[[1]]"), HasSubstr("points[0]"));
  std::string twice = R"({"operator": "Add", "type": "f32", "per": "byte", "points": [[1, 2]]})";
  EXPECT_THAT(errorOf(profileText("[" + twice + ", " + twice + "]")), HasSubstr("operators[1]"));
}

TEST(Profile, AFileThatIsNoProfileIsNamed) {
  auto missing = loadProfile("/nowhere/profile.json");
  ASSERT_FALSE(static_cast<bool>(missing));
  std::string text = llvm::toString(missing.takeError());
  EXPECT_THAT(text, HasSubstr("/nowhere/profile.json"));
  EXPECT_THAT(text, HasSubstr("--calibrate"));
}

} // namespace
} // namespace recast::cost
