#include "runtime/session/Npy.h"
#include "runtime/session/Dataset.h"
#include "runtime/session/Random.h"
#include "runtime/session/Zip.h"
#include "tests/unit/session/SessionTest.h"
#include <cstring>

namespace recast {
namespace {

using namespace test;

std::string npy(const std::string &header, std::string_view data, char version = 1) {
  std::string file = std::string("\x93NUMPY") + version + '\0';
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  if (version > 1)
    file += std::string(2, '\0');
  return file + header + std::string(data);
}

Result<HostTensor> parse(std::string_view text) {
  HeapFile file(text);
  return parseNpy(file.bytes(), file.owner, "a.npy");
}

std::string unhex(std::string_view digits) {
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  return bytes;
}

template <typename T> std::vector<T> values(const HostTensor &tensor) {
  std::vector<T> result(static_cast<size_t>(tensor.type.elems()));
  std::memcpy(result.data(), tensor.data, result.size() * sizeof(T));
  return result;
}

// numpy.savez_compressed(x=arange(6, dtype=float32).reshape(2, 3), labels=array([1, -2])).
constexpr std::string_view kCompressed =
    "504b0304140000000800000021004fe9002a550000009800000005001400782e6e70790100100098000000000000005500000000000000"
    "9bec17ea1b10c9c850c650ad9e925a9c5ca46ea5a06e9366a2aea3a09e965f54529498179f5f94920a12774bcc294e058a17672416a402"
    "f91a463a0ac69a3a0ab50a64032e063068b007120e4004c40d40bcc00100504b0304140000000800000021009afbf5234b000000900000"
    "000a0014006c6162656c732e6e70790100100090000000000000004b000000000000009bec17ea1b10c9c850c650ad9e925a9c5ca46ea5"
    "a06e9369a1aea3a09e965f54529498179f5f94920a12774bcc294e058a17672416a402f91a463a9a3a0ab50a14002e460608f8f71f0200"
    "504b01021403140000000800000021004fe9002a5500000098000000050000000000000000000000800100000000782e6e7079504b0102"
    "1403140000000800000021009afbf5234b000000900000000a000000000000000000000080018c0000006c6162656c732e6e7079504b05"
    "0600000000020002006b000000130100000000";
// numpy.savez(m=array([True, False])).
constexpr std::string_view kStored =
    "504b030414000000000000002100ee19bb5d8200000082000000050014006d2e6e70790100100082000000000000008200000000000000"
    "934e554d5059010076007b276465736372273a20277c6231272c2027666f727472616e5f6f72646572273a2046616c73652c2027736861"
    "7065273a2028322c292c207d20202020202020202020202020202020202020202020202020202020202020202020202020202020202020"
    "20202020202020202020202020202020200a0100504b0102140314000000000000002100ee19bb5d820000008200000005000000000000"
    "00000000008001000000006d2e6e7079504b0506000000000100010033000000b90000000000";
TEST(Npy, ReadsEveryVersion) {
  std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 1), }\n",
              data = rawBytes<int32_t>({7, -8});
  for (char version : {1, 2, 3}) {
    auto tensor = parse(npy(header, data, version));
    ASSERT_TRUE(tensor) << tensor.message();
    EXPECT_EQ(tensor->type, (TensorType{DType::I32, {2, 1}}));
    EXPECT_EQ(values<int32_t>(*tensor), (std::vector<int32_t>{7, -8}));
  }
  auto scalar = parse(npy("{\"shape\": (), \"descr\": \"<f8\", \"fortran_order\": True}", rawBytes<double>({0.5})));
  ASSERT_TRUE(scalar) << scalar.message();
  EXPECT_EQ(scalar->type, (TensorType{DType::F64, {}}));
}

TEST(Npy, RearrangesFortranOrder) {
  // [[[0, 1], [2, 3], [4, 5]]] has its first axis fastest.
  auto tensor =
      parse(npy("{'descr': '<i2', 'fortran_order': True, 'shape': (1, 3, 2)}", rawBytes<int16_t>({0, 2, 4, 1, 3, 5})));
  ASSERT_TRUE(tensor) << tensor.message();
  EXPECT_EQ(values<int16_t>(*tensor), (std::vector<int16_t>{0, 1, 2, 3, 4, 5}));
}

TEST(Npy, RefusesMalformedFiles) {
  std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "does not start as one"},
      {"PK\3\4 and no array", "does not start as one"},
      {npy(good, "abcd", 9), "version 9"},
      {npy(good, "abcd").substr(0, 30), "header is said to have 55 bytes"},
      {npy(good, "abc"), "3 bytes of data for f32[1]"},
      {npy(good, "abcde"), "5 bytes of data for f32[1]"},
      {npy("{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", "abcd"), "elements of type '>f4'"},
      {npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "abcd"), "elements of type '|O'"},
      {npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "abcd"), "header is not understood"},
      {npy("{'descr': '<f4', 'fortran_order': False}", "abcd"), "header is not understood"},
      {npy("{'descr': '<f4', 'fortran_order': 1, 'shape': (1,)}", "abcd"), "header is not understood"},
      {npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "abcd"), "header is not understood"},
      {npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", "abcd"),
       "4 bytes of data for"},
  };
  for (const auto &[file, message] : cases) {
    auto tensor = parse(file);
    EXPECT_FALSE(tensor);
    if (!tensor)
      expectError(tensor.status(), {"a.npy", message});
  }
}

TEST(Npz, ReadsStoredAndDeflatedMembers) {
  TempFolder folder;
  writeFile(folder / "c.npz", unhex(kCompressed));
  auto tensors = readTensors(folder / "c.npz");
  ASSERT_TRUE(tensors) << tensors.message();
  ASSERT_EQ(tensors->size(), 2u);
  EXPECT_EQ((*tensors)["x"].type, (TensorType{DType::F32, {2, 3}}));
  EXPECT_EQ(values<float>((*tensors)["x"]), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(values<int64_t>((*tensors)["labels"]), (std::vector<int64_t>{1, -2}));

  writeFile(folder / "s.npz", unhex(kStored));
  tensors = readTensors(folder / "s.npz");
  ASSERT_TRUE(tensors) << tensors.message();
  EXPECT_EQ((*tensors)["m"].type, (TensorType{DType::Bool, {2}}));
}

TEST(Npz, NoticesDamage) {
  std::string file = unhex(kStored);
  std::string flipped = file;
  flipped[60] ^= 1;
  auto parsed = parseZip(bytesOf(flipped), nullptr, "s.npz");
  ASSERT_FALSE(parsed);
  expectError(parsed.status(), {"'s.npz'", "'m.npy'", "wrong checksum"});
  parsed = parseZip(bytesOf(std::string_view(file).substr(0, 200)), nullptr, "s.npz");
  ASSERT_FALSE(parsed);
  expectError(parsed.status(), {"no directory"});

  // Random damage: no crash, and nothing that is not what was written.
  SplitMix64 random(2);
  for (int i = 0; i < 20'000; ++i) {
    std::string damaged = unhex(i % 2 ? kStored : kCompressed);
    for (uint64_t changes = 1 + random.below(3); changes; --changes)
      damaged[random.below(damaged.size())] = static_cast<char>(random.next());
    HeapFile heap(damaged);
    if (auto members = parseZip(heap.bytes(), heap.owner, "z"))
      for (const ZipMember &member : *members) {
        auto ignored = parseNpy(member.bytes, member.owner, "z");
      }
  }
}

TEST(DataFiles, ReadsFoldersAndSingleArrays) {
  TempFolder folder;
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}";
  writeFile(folder / "in.x.npy", npy(header, rawBytes<float>({3})));
  writeFile(folder / "notes.txt", "not an array");
  auto tensors = readTensors(folder.path.string());
  ASSERT_TRUE(tensors) << tensors.message();
  ASSERT_EQ(tensors->size(), 1u);
  EXPECT_EQ(values<float>((*tensors)["in.x"]), (std::vector<float>{3}));
  tensors = readTensors(folder / "in.x.npy");
  ASSERT_TRUE(tensors);
  EXPECT_EQ(tensors->begin()->first, "in.x");
  auto missing = readTensors(folder / "none.npz");
  ASSERT_FALSE(missing);
  expectError(missing.status(), {"none.npz", "No such file"});
  missing = readTensors(folder / "notes.txt");
  ASSERT_FALSE(missing);
  expectError(missing.status(), {"notes.txt", "give a .safetensors, .npz, .npy or .bin file"});
}

} // namespace
} // namespace recast
