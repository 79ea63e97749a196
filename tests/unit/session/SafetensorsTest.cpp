#include "runtime/session/Safetensors.h"
#include "runtime/session/Random.h"
#include "tests/unit/session/SessionTest.h"
#include <cstring>

namespace recast {
namespace {

using namespace test;

std::string withHeader(std::string_view header, std::string_view data) {
  uint64_t length = header.size();
  return std::string(reinterpret_cast<const char *>(&length), 8) + std::string(header) + std::string(data);
}

Result<Safetensors> parse(std::string_view text) {
  HeapFile file(text);
  return parseSafetensors(file.bytes(), file.owner, "file");
}

TEST(Safetensors, RoundTripsEveryTypeAndTheMetadata) {
  TempFolder folder;
  std::string path = folder / "all.safetensors";
  std::string bytes(64, '\1');
  std::vector<NamedTensor> tensors;
  for (DType type : {DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::I16, DType::I8,
                     DType::U64, DType::U32, DType::U16, DType::U8, DType::Bool, DType::F8E4M3FN, DType::F8E5M2,
                     DType::F8E4M3FNUZ, DType::F8E5M2FNUZ, DType::F8E8M0})
    tensors.push_back({std::string(name(type)), {type, {3, 1}}, bytes.data()});
  tensors.push_back({"empty", {DType::F32, {0, 5}}, nullptr});
  tensors.push_back({"scalar \"quoted\"", {DType::F64, {}}, bytes.data()});
  Status written = writeSafetensors(path, tensors, {{"step", "7"}});
  ASSERT_TRUE(written.ok()) << written.message();
  EXPECT_EQ(folder.list(), (std::vector<std::string>{"all.safetensors"}));

  auto read = readSafetensors(path);
  ASSERT_TRUE(read) << read.message();
  EXPECT_EQ(read->metadata, (Metadata{{"step", "7"}}));
  ASSERT_EQ(read->tensors.size(), tensors.size());
  for (const NamedTensor &tensor : tensors) {
    const HostTensor &got = read->tensors.find(tensor.name)->second;
    EXPECT_EQ(got.type, tensor.type);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(got.data) % byteSize(tensor.type.dtype), 0u) << tensor.name;
    if (size_t size = tensor.type.bytes())
      EXPECT_EQ(std::memcmp(got.data, bytes.data(), size), 0);
  }
}

TEST(Safetensors, ReadsUnalignedTensors) {
  auto read = parse(withHeader(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                               R"("b":{"dtype":"I16","shape":[],"data_offsets":[1,3]}})",
                               std::string("\x05\x01\x02")));
  ASSERT_TRUE(read) << read.message();
  int64_t value = 0;
  std::string bad;
  EXPECT_TRUE(convert(DType::I16, read->tensors.find("b")->second.data, DType::I64, &value, 1, bad));
  EXPECT_EQ(value, 0x201);
}

struct Malformed {
  const char *what;
  std::string file, message;
};

TEST(Safetensors, RefusesMalformedFilesWithOneSentence) {
  std::string f4 = "abcd";
  auto one = [&](const char *fields, std::string_view data = "abcd") {
    return withHeader("{\"t\":{" + std::string(fields) + "}}", data);
  };
  std::string huge(8, '\xff');
  const std::vector<Malformed> cases = {
      {"empty file", "", "only 0 bytes"},
      {"short length", "abc", "only 3 bytes"},
      {"length beyond the file", std::string("\x10\0\0\0\0\0\0\0{}", 10), "header is said to have 16 bytes"},
      {"length of all ones", huge + "{}", "header is said to have 18446744073709551615 bytes"},
      {"no JSON", withHeader("hello", ""), "no JSON object"},
      {"a list", withHeader("[]", ""), "no JSON object"},
      {"cut JSON", withHeader("{\"t\":{", ""), "no JSON object"},
      {"deep JSON", withHeader(std::string(200'000, '['), ""), "no JSON object"},
      {"bad UTF-8", withHeader("{\"\xff\":1}", ""), "no JSON object"},
      {"duplicate",
       withHeader(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                  R"("t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                  ""),
       "'t' stands twice"},
      {"entry is a number", withHeader("{\"t\":3}", ""), "tensor 't' has no dtype"},
      {"no offsets", one(R"("dtype":"F32","shape":[1])"), "tensor 't' has no dtype, shape and data_offsets"},
      {"dtype is a number", one(R"("dtype":1,"shape":[1],"data_offsets":[0,4])"), "'t' has a dtype that is no string"},
      {"unknown dtype", one(R"("dtype":"F31","shape":[1],"data_offsets":[0,4])"), "'t' has dtype F31"},
      {"shape is a number", one(R"("dtype":"F32","shape":1,"data_offsets":[0,4])"), "'t' has a shape that is no list"},
      {"negative dimension", one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), "'t' has -1 as a dimension"},
      {"fraction", one(R"("dtype":"F32","shape":[1.5],"data_offsets":[0,4])"), "'t' has 1.5 as a dimension"},
      {"dimension of 2^63", one(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4])"),
       "'t' has 9223372036854775808 as a dimension"},
      {"overflowing shape", one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])", ""),
       "which are not the 0 bytes"},
      {"one offset", one(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), "'t' has data_offsets that are not two"},
      {"negative offset", one(R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])"), "'t' has data_offsets that are"},
      {"backward offsets", one(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), "'t' has bytes 4 to 0"},
      {"beyond the end", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), "the file holds 4 bytes"},
      {"wrong size", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), "'t' is f32[2]"},
      {"trailing bytes", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])", "abcdef"), "2 bytes at the end"},
      {"leading bytes", one(R"("dtype":"F32","shape":[1],"data_offsets":[2,6])", "abcdef"),
       "2 bytes before tensor 't'"},
      {"overlap",
       withHeader(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                  R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                  f4),
       "tensor 'b' overlaps"},
      {"metadata is a list", withHeader(R"({"__metadata__":[]})", ""), "__metadata__ is no object"},
      {"metadata value", withHeader(R"({"__metadata__":{"k":1}})", ""), "value of 'k' in its __metadata__"},
  };
  for (const Malformed &test : cases) {
    SCOPED_TRACE(test.what);
    auto read = parse(test.file);
    EXPECT_FALSE(read);
    if (!read)
      expectError(read.status(), {"'file' is no valid safetensors file: ", test.message});
  }
}

/// Bytes changed at random: whatever comes back, no access leaves the file (the sanitizers' build sees one).
TEST(Safetensors, SurvivesDamagedBytes) {
  std::string good = withHeader(R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                                R"("b":{"dtype":"BOOL","shape":[4],"data_offsets":[8,12]}})",
                                "0123456789ab");
  ASSERT_TRUE(parse(good));
  SplitMix64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string file = good;
    for (uint64_t changes = 1 + random.below(3); changes; --changes)
      file[random.below(file.size())] = static_cast<char>(random.next());
    if (random.below(4) == 0)
      file.resize(random.below(file.size() + 1));
    if (auto read = parse(file)) {
      for (const auto &[name, tensor] : read->tensors) {
        std::vector<std::byte> target(tensor.type.bytes());
        std::string bad;
        convert(tensor.type.dtype, tensor.data, tensor.type.dtype, target.data(), tensor.type.elems(), bad);
      }
    }
  }
}

TEST(Safetensors, WritesNothingWhereTheFolderIsMissing) {
  TempFolder folder;
  float value = 1;
  std::vector<NamedTensor> tensors{{"t", {DType::F32, {}}, &value}};
  expectError(writeSafetensors(folder / "none/file.safetensors", tensors), {"none/file.safetensors", "No such file"});
  tensors[0].type.dtype = DType::String;
  expectError(writeSafetensors(folder / "file.safetensors", tensors), {"tensor 't'", "holds no string"});
  EXPECT_TRUE(folder.list().empty());
}

TEST(AtomicFile, LeavesNothingWithoutCommitAndKeepsTheOldFile) {
  TempFolder folder;
  writeFile(folder / "file", "old");
  {
    auto file = AtomicFile::create(folder / "file");
    ASSERT_TRUE(file && (*file)->write("new").ok());
    EXPECT_EQ(readFile(folder / "file"), "old");
  }
  EXPECT_EQ(folder.list(), (std::vector<std::string>{"file"}));
  EXPECT_EQ(readFile(folder / "file"), "old");
  auto file = AtomicFile::create(folder / "file");
  ASSERT_TRUE(file && (*file)->write("new").ok() && (*file)->commit().ok());
  EXPECT_EQ(readFile(folder / "file"), "new");
  EXPECT_EQ(folder.list(), (std::vector<std::string>{"file"}));
}

} // namespace
} // namespace recast
