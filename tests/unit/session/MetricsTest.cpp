#include "runtime/session/Metrics.h"
#include "runtime/session/Progress.h"
#include "runtime/session/Schedule.h"
#include "runtime/session/TensorBoard.h"
#include "tests/unit/session/SessionTest.h"
#include <cmath>
#include <cstring>

namespace recast {
namespace {

using namespace test;

TEST(Schedule, FollowsItsFormulas) {
  auto at = [](ScheduleOptions options, int64_t step) {
    auto schedule = Schedule::create(options, 1.0, 12);
    EXPECT_TRUE(schedule) << schedule.message();
    return schedule->at(step);
  };
  EXPECT_EQ(at({}, 5), 1.0);
  EXPECT_FALSE(Schedule::create({}, 1.0, 12)->changes());
  EXPECT_TRUE(Schedule::create({"constant", 2, 0}, 1.0, 12)->changes());
  EXPECT_EQ(at({"linear", 2, 0}, 0), 0.5);
  EXPECT_EQ(at({"linear", 2, 0}, 1), 1.0);
  EXPECT_EQ(at({"linear", 2, 0}, 2), 1.0);
  EXPECT_DOUBLE_EQ(at({"linear", 2, 0}, 7), 0.5);
  EXPECT_DOUBLE_EQ(at({"linear", 2, 0.2}, 11), 1 - 0.9 * 0.8);
  EXPECT_DOUBLE_EQ(at({"cosine", 2, 0.2}, 7), 0.6);
  EXPECT_DOUBLE_EQ(at({"cosine", 0, 0}, 4), 0.5 * (1 + std::cos(M_PI / 3)));
  EXPECT_DOUBLE_EQ(at({"cosine", 0, 0.1}, 12), 0.1);
}

TEST(Schedule, ReadsFiles) {
  TempFolder folder;
  writeFile(folder / "lines", "1e-3\n\n 5e-4 \r\n2");
  writeFile(folder / "list", " [0.25, 1, 3e-1]\n");
  writeFile(folder / "word", "1e-3\nfast\n");
  writeFile(folder / "empty", "");
  auto read = [&](const char *name, int64_t steps) { return Schedule::create({folder / name, 0, 0}, 1, steps); };
  auto lines = read("lines", 3), list = read("list", 3);
  ASSERT_TRUE(lines) << lines.message();
  ASSERT_TRUE(list) << list.message();
  EXPECT_EQ(lines->at(1), 5e-4);
  EXPECT_EQ(list->at(2), 0.3);
  expectError(read("lines", 4).status(), {"3 learning rates", "4 steps"});
  expectError(read("word", 2).status(), {"line 2", "word", "no number"});
  expectError(read("empty", 1).status(), {"no list of learning rates"});
  expectError(read("none", 1).status(), {"constant, linear and cosine", "No such file"});
  expectError(Schedule::create({folder / "list", 1, 0}, 1, 3).status(), {"--warmup-steps"});
}

TEST(Metrics, WritesOneJsonLineAStep) {
  std::vector<Metric> metrics{{"loss", 0.5},           {"found_inf", true},  {"tokens", int64_t(9007199254740993)},
                              {"grad_norm", INFINITY}, {"other", -INFINITY}, {"third", NAN}};
  EXPECT_EQ(metricsLine(3, metrics), R"({"step":3,"loss":0.5,"found_inf":true,"tokens":9007199254740993,)"
                                     R"("grad_norm":"inf","other":"-inf","third":"nan"})");
}

TEST(Metrics, ReplacesTheFileAtTheFirstStepOrGoesOnAfterACheckpoint) {
  TempFolder folder;
  std::string path = folder / "m.jsonl";
  std::vector<Metric> metrics{{"loss", 1.0}};
  writeFile(path, "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"st");
  {
    auto writer = MetricsWriter::create(path, 2);
    ASSERT_TRUE(writer && (*writer)->write(3, metrics).ok());
  }
  EXPECT_EQ(readFile(path), "{\"step\":1}\n{\"step\":2}\n{\"step\":3,\"loss\":1.0}\n");
  auto writer = MetricsWriter::create(path);
  ASSERT_TRUE(writer);
  EXPECT_NE(readFile(path), "");
  ASSERT_TRUE((*writer)->write(1, metrics).ok());
  EXPECT_EQ(readFile(path), "{\"step\":1,\"loss\":1.0}\n");
  expectError(MetricsWriter::create(folder / "none/m.jsonl").status(), {"none/m.jsonl"});
  expectError(MetricsWriter::create(path + "/x.jsonl").status(), {"m.jsonl/x.jsonl"});
}

TEST(TensorBoard, ChecksumsAreThoseOfRfc3720) {
  EXPECT_EQ(tensorboard::crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(tensorboard::crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(tensorboard::crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(TensorBoard, WritesRecordsOfEvents) {
  TempFolder folder;
  auto writer = MetricsWriter::create(folder / "board");
  ASSERT_TRUE(writer) << writer.message();
  EXPECT_TRUE(folder.list().empty()); // Nothing before the first step.
  std::vector<Metric> metrics{{"loss", 0.5}};
  ASSERT_TRUE((*writer)->write(300, metrics).ok());
  std::string name = std::filesystem::directory_iterator(folder / "board")->path().filename().string();
  EXPECT_TRUE(name.starts_with("events.out.tfevents."));
  std::string file = readFile(folder / ("board/" + name));
  std::vector<std::string> payloads;
  while (!file.empty()) {
    uint64_t length = 0;
    ASSERT_GE(file.size(), 16u);
    std::memcpy(&length, file.data(), 8);
    payloads.push_back(file.substr(12, length));
    EXPECT_EQ(tensorboard::record(payloads.back()), file.substr(0, length + 16));
    file.erase(0, length + 16);
  }
  ASSERT_EQ(payloads.size(), 2u);
  EXPECT_EQ(payloads[0].substr(9), "\x1a\x0d"
                                   "brain.Event:2");
  // step = 300, summary {value {tag = "loss", simple_value = 0.5}}.
  EXPECT_EQ(payloads[1].substr(9), std::string("\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\x00\x3f", 18));
}

TEST(Progress, WritesAboutTenLinesWithoutATerminal) {
  TempFolder folder;
  std::FILE *file = std::fopen((folder / "log").c_str(), "w");
  {
    Progress progress(file, 0, 100);
    for (int64_t step = 1; step <= 100; ++step)
      progress.update(step, 0.25, step == 100 ? std::optional<double>(65536) : std::nullopt);
  }
  std::fclose(file);
  std::string log = readFile(folder / "log");
  EXPECT_EQ(std::ranges::count(log, '\n'), 11);
  EXPECT_TRUE(log.starts_with("step 1/100  loss 0.25  ")) << log;
  EXPECT_NE(log.find("step 100/100  loss 0.25  loss scale 65536  "), std::string::npos) << log;
  EXPECT_EQ(log.find('\x1b'), std::string::npos);
  EXPECT_EQ(durationText(59.6), "1:00");
  EXPECT_EQ(durationText(3723), "1:02:03");
}

} // namespace
} // namespace recast
