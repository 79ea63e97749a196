#include "runtime/fusion/Cache.h"
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

namespace recast::fusion {
namespace {

namespace fs = std::filesystem;

class CacheTest : public testing::Test {
protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "recast-cache-XXXXXX").string();
    folder = mkdtemp(pattern.data());
    setenv("RECAST_CACHE", folder.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("RECAST_CACHE");
    fs::remove_all(folder);
  }
  fs::path folder;
};

TEST_F(CacheTest, GivesBackWhatWasWritten) {
  std::string bytes("\0code\n\xff", 7);
  EXPECT_FALSE(Cache().read("a"));
  Cache().write("a", bytes);
  EXPECT_EQ(Cache().read("a"), bytes);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1) << "nothing temporary is left";
}

TEST_F(CacheTest, DamagedFilesAreMissing) {
  Cache().write("a", "some machine code");
  for (int kind = 0; kind < 3; ++kind) {
    std::string text;
    {
      std::ifstream in(folder / "a", std::ios::binary);
      text.assign(std::istreambuf_iterator<char>(in), {});
    }
    std::string damaged = kind == 0 ? text.substr(0, text.size() - 1) : kind == 1 ? "" : text;
    if (kind == 2)
      damaged[3] = static_cast<char>(damaged[3] ^ 1);
    std::ofstream(folder / "a", std::ios::binary) << damaged;
    EXPECT_FALSE(Cache().read("a")) << kind;
    Cache().write("a", "some machine code");
    EXPECT_TRUE(Cache().read("a"));
  }
}

TEST_F(CacheTest, CanBeOff) {
  setenv("RECAST_CACHE", "off", 1);
  Cache().write("a", "x");
  EXPECT_FALSE(Cache().read("a"));
}

} // namespace
} // namespace recast::fusion
