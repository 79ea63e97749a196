#include "passes/gradient/Differentiability.h"
#include <gtest/gtest.h>

namespace recast::gradient {
namespace {

TEST(Glob, StarsAndQuestionMarks) {
  EXPECT_TRUE(matchesGlob("*.weight", "fc1.weight"));
  EXPECT_FALSE(matchesGlob("*.weight", "fc1.weight2"));
  EXPECT_TRUE(matchesGlob("blocks.?.ln*", "blocks.3.ln1.bias"));
  EXPECT_FALSE(matchesGlob("blocks.?.ln*", "blocks.12.ln1.bias"));
  EXPECT_TRUE(matchesGlob("a*b*c", "a__b__bc"));
  EXPECT_TRUE(matchesGlob("*", ""));
  EXPECT_FALSE(matchesGlob("", "x"));
  EXPECT_TRUE(matchesGlob("w[0]", "w[0]")); // brackets are literal
}

TEST(Glob, ManyStarsStayFast) {
  std::string pattern, text(20000, 'a');
  for (int i = 0; i < 30; ++i)
    pattern += "*a";
  EXPECT_FALSE(matchesGlob(pattern + "b", text));
}

} // namespace
} // namespace recast::gradient
