// SPDX-License-Identifier: Apache-2.0
#include "backend/nccl/library.h"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>

#include "fake_nccl.h"

using dt::Code;
using dt::nccl::Answer;
using dt::nccl::Library;
using dt::nccl::UniqueId;

namespace {

std::string error_of(const std::string& path, const std::string& soname = dt::nccl::kSoname) {
  const auto library = Library::open(path, soname);
  REQUIRE_FALSE(library.ok());
  CHECK(library.status().code() == Code::kNccl);
  return library.status().message();
}

constexpr char kInstall[] = "; pip install nvidia-nccl-cu13, or give nccl.library";

}  // namespace

TEST_CASE("a named library is opened, and nothing else") {
  const auto library = Library::open(DT_FAKE_NCCL);
  REQUIRE(library.ok());
  CHECK(library.value()->version() == 22809);
  CHECK(library.value()->version_text() == "2.28.9");
  CHECK(library.value()->path() == DT_FAKE_NCCL);
  CHECK(library.value()->origin() == "nccl.library");
  CHECK(library.value()->missing().empty());
  CHECK((library.value()->functions().comm_deregister != nullptr));
  CHECK(error_of("/nowhere/libnccl.so.2") ==
        "nccl.library (/nowhere/libnccl.so.2) cannot be opened: the loader says "
        "\"/nowhere/libnccl.so.2: cannot open shared object file: No such file or directory\"; "
        "correct nccl.library, or leave it out, so that libnccl.so.2 is looked for");
}

TEST_CASE("where there is none, every place and the loader's words are told") {
  CHECK(error_of("", "libnccl-of-nobody.so.2") ==
        "there is no NCCL: nccl.library is not set; this process has not loaded "
        "libnccl-of-nobody.so.2; the loader says \"libnccl-of-nobody.so.2: cannot open shared "
        "object file: No such file or directory\"" +
            std::string(kInstall));
}

TEST_CASE("another library is no NCCL") {
  const std::string error = error_of("libm.so.6");
  CHECK(error.find("the library found as \"nccl.library\" is no NCCL: the loader says \"") == 0);
  CHECK(error.find("undefined symbol: ncclGetVersion") != std::string::npos);
  CHECK(error.find(kInstall) != std::string::npos);
}

TEST_CASE("an old one is refused, also one that answers with an error") {
  dt::test::FakeNccl* fake = dt::test::fake_nccl(DT_FAKE_NCCL);
  fake->set_version(21705);
  CHECK(error_of(DT_FAKE_NCCL) == "NCCL 2.17.5 (" DT_FAKE_NCCL
                                  ", nccl.library) is too old: dt needs 2.18.0 or newer" +
                                      std::string(kInstall));
  fake->set_version(21800);
  CHECK(Library::open(DT_FAKE_NCCL).ok());
  fake->set_version(22809);
  fake->order({"ncclGetVersion", dt::test::FakeNccl::Fault::kAnswer, Answer::kSystemError});
  CHECK(error_of(DT_FAKE_NCCL) ==
        DT_FAKE_NCCL " (nccl.library): ncclGetVersion answers 2" + std::string(kInstall));
}

TEST_CASE("functions that dt needs must be there, others may be missing") {
  CHECK(error_of(DT_FAKE_NCCL_LACKING) == "NCCL 2.28.9 (" DT_FAKE_NCCL_LACKING
                                          ", nccl.library) lacks ncclCommAbort, ncclReduceScatter" +
                                              std::string(kInstall));
  const auto bare = Library::open(DT_FAKE_NCCL_BARE);
  REQUIRE(bare.ok());
  CHECK(bare.value()->missing() == std::vector<std::string>{"ncclMemAlloc", "ncclMemFree",
                                                            "ncclCommRegister",
                                                            "ncclCommDeregister"});
  CHECK((bare.value()->functions().mem_alloc == nullptr));
}

TEST_CASE("two files are two libraries, with a state of their own") {
  const auto one = Library::open(DT_FAKE_NCCL);
  const auto other = Library::open(DT_FAKE_NCCL_TWIN);
  REQUIRE(one.ok());
  REQUIRE(other.ok());
  CHECK((one.value()->functions().get_unique_id != other.value()->functions().get_unique_id));
  dt::test::FakeNccl* first = dt::test::fake_nccl(DT_FAKE_NCCL);
  dt::test::FakeNccl* second = dt::test::fake_nccl(DT_FAKE_NCCL_TWIN);
  const int64_t before = second->calls("ncclGetUniqueId");
  UniqueId id;
  REQUIRE(one.value()->functions().get_unique_id(&id) == Answer::kSuccess);
  CHECK(first->calls("ncclGetUniqueId") == 1);
  CHECK(second->calls("ncclGetUniqueId") == before);
}

TEST_CASE("an answer becomes an error with NCCL's words and what to do") {
  const auto library = Library::open(DT_FAKE_NCCL).value();
  CHECK(library->error("ncclAllReduce", Answer::kSuccess).ok());
  // Nothing has failed in this thread so far but what was ordered above.
  dt::test::fake_nccl(DT_FAKE_NCCL)
      ->order({"ncclGetUniqueId", dt::test::FakeNccl::Fault::kAnswer, Answer::kSystemError});
  UniqueId id;
  const Answer answer = library->functions().get_unique_id(&id);
  const dt::Status status = library->error("ncclGetUniqueId", answer);
  CHECK(status.code() == Code::kNccl);
  CHECK(status.message() ==
        "ncclGetUniqueId: unhandled system error (run with NCCL_DEBUG=INFO for details) (NCCL "
        "says: ncclGetUniqueId was ordered to fail); nccl.debug = \"WARN\" makes NCCL tell more");
  const auto bare = Library::open(DT_FAKE_NCCL_BARE).value();
  CHECK(bare->error("ncclSend", Answer::kRemoteError).message() ==
        "ncclSend: remote process exited or there was a network error; a peer is gone or the "
        "network to it is broken: go on with dt_comm_shrink, or start the job again");
  CHECK(bare->error("ncclCommInitRankConfig", Answer::kInvalidUsage)
            .message()
            .find("dt doctor --cluster") != std::string::npos);
  CHECK(bare->error("ncclSend", static_cast<Answer>(77)).message().find("unknown result code") !=
        std::string::npos);
}

TEST_CASE("versions are written as NCCL writes them") {
  CHECK(dt::nccl::version_text(22809) == "2.28.9");
  CHECK(dt::nccl::version_text(21800) == "2.18.0");
  CHECK(dt::nccl::version_text(2804) == "2.8.4");
}

TEST_CASE("known faults belong to releases") {
  const auto count = [](int32_t version) { return dt::nccl::known_faults(version).size(); };
  CHECK(count(21805) == 4);
  CHECK(count(22200) == 3);
  CHECK(count(22809) == 5);
  CHECK(count(22907) == 2);
  CHECK(count(23007) == 1);
  for (const auto& fault : dt::nccl::known_faults(22809)) {
    CHECK(fault.text.back() == '.');
    CHECK((fault.fixed_in == 0 || fault.fixed_in > 22809));
  }
}

TEST_CASE("the NCCL of this machine, where there is one") {
  const auto library = Library::open("");
  if (!library.ok()) {
    MESSAGE("skipped: " << library.status().message());
    return;
  }
  CHECK(library.value()->origin() == "libnccl.so.2");
  CHECK(library.value()->path().find("libnccl.so.2") != std::string::npos);
  CHECK(library.value()->version() >= dt::nccl::kOldestVersion);
  CHECK(std::string(library.value()->functions().get_error_string(Answer::kSuccess)) == "no error");
  const auto again = Library::open("");
  REQUIRE(again.ok());
  CHECK(again.value()->origin() == "already loaded");
  CHECK(again.value()->path() == library.value()->path());
  CHECK((again.value()->functions().get_version == library.value()->functions().get_version));
  // A link is the same file, hence the same library; a copy is another one.
  CHECK((Library::open(library.value()->path()).value()->functions().get_version ==
         library.value()->functions().get_version));
  namespace fs = std::filesystem;
  const fs::path copy = fs::temp_directory_path() / dt::format("dt_nccl_%d.so", getpid());
  std::error_code error;
  fs::copy_file(library.value()->path(), copy, error);
  if (error) {
    MESSAGE("not copied, which takes 200 MB: " << error.message());
  } else {
    const auto second = Library::open(copy);
    REQUIRE(second.ok());
    CHECK(second.value()->path() == copy);
    CHECK(second.value()->version() == library.value()->version());
    CHECK((second.value()->functions().get_version != library.value()->functions().get_version));
  }
  fs::remove(copy, error);
}
