#include "passes/checkpoint/Budget.h"
#include <gtest/gtest.h>

namespace recast::checkpoint {
namespace {

TEST(Budget, ReadsSizesPartsAndMin) {
  auto bytes = [](const char *text) {
    llvm::Expected<Budget> budget = parseBudget(text);
    EXPECT_TRUE(!!budget) << text;
    EXPECT_EQ(budget->kind, Budget::Kind::Bytes) << text;
    return budget->bytes;
  };
  EXPECT_EQ(bytes("1"), 1);
  EXPECT_EQ(bytes("4096B"), 4096);
  EXPECT_EQ(bytes("2GiB"), int64_t(2) << 30);
  EXPECT_EQ(bytes("500MB"), 500'000'000);
  EXPECT_EQ(bytes("1.5 KiB"), 1536);
  llvm::Expected<Budget> part = parseBudget("62.5%");
  ASSERT_TRUE(!!part);
  EXPECT_EQ(part->kind, Budget::Kind::Percent);
  EXPECT_EQ(part->percent, 62.5);
  EXPECT_EQ(llvm::cantFail(parseBudget("min")).kind, Budget::Kind::Least);
  EXPECT_EQ(llvm::cantFail(parseBudget("")).kind, Budget::Kind::None);
}

TEST(Budget, RefusesWhatIsNoSize) {
  for (const char *text :
       {"nan", "NaN",  "inf", "-1",  "-5%", "0",     "0%",       "0GiB",       "101%", "nan%", "inf%",
        "1e3", "0x10", "+5",  "GiB", "%",   "1.2.3", "5 apples", "9999999TiB", "max",  "0.5B", ".5GiB"}) {
    llvm::Expected<Budget> budget = parseBudget(text);
    EXPECT_FALSE(!!budget) << text;
    std::string message = llvm::toString(budget.takeError());
    EXPECT_NE(message.find("is needed"), std::string::npos) << message;
  }
}

TEST(Policy, ReadsNamesAndGlobs) {
  auto kind = [](const char *text) { return llvm::cantFail(parsePolicy(text)).kind; };
  EXPECT_EQ(kind("auto"), Policy::Kind::Auto);
  EXPECT_EQ(kind("none"), Policy::Kind::None);
  EXPECT_EQ(kind("sqrt"), Policy::Kind::Sqrt);
  EXPECT_EQ(kind("selective"), Policy::Kind::Selective);
  EXPECT_EQ(llvm::cantFail(parsePolicy("every-12")).count, 12);
  EXPECT_EQ(llvm::cantFail(parsePolicy("h.*.out,x")).globs, (std::vector<std::string>{"h.*.out", "x"}));
  for (const char *text : {"", "every-0", "every--3", "every-x", "every-", "a,,b", "a,"})
    EXPECT_FALSE(llvm::errorToBool(parsePolicy(text).takeError()) == false) << text;
}

TEST(FormatBytes, TakesTheUnitThatFits) {
  EXPECT_EQ(formatBytes(1023), "1023 bytes");
  EXPECT_EQ(formatBytes(1536), "1.50 KiB");
  EXPECT_EQ(formatBytes(int64_t(5) << 40), "5.00 TiB");
  EXPECT_EQ(formatBytes(int64_t(5000) << 40), "5000.00 TiB");
}

} // namespace
} // namespace recast::checkpoint
