// SPDX-License-Identifier: Apache-2.0
#include "metrics/request.h"

#include <doctest/doctest.h>

#include <string>

using dt::metrics::RequestReader;
using dt::metrics::response;

namespace {

/// 0: more has to come.
int status_of(const std::string& request) { return RequestReader().feed(request).value_or(0); }

/// The same, byte by byte.
int status_in_pieces(const std::string& request) {
  RequestReader reader;
  for (const char c : request) {
    if (const auto status = reader.feed(std::string(1, c))) return *status;
  }
  return 0;
}

}  // namespace

TEST_CASE("request: what a scraper sends is answered when its last line is there") {
  const std::string request =
      "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9400\r\nAccept: text/plain\r\n\r\n";
  CHECK(status_of(request) == 200);
  CHECK(status_in_pieces(request) == 200);
  for (size_t bytes = 0; bytes < request.size(); ++bytes) {
    CHECK(status_of(request.substr(0, bytes)) == 0);
  }
  CHECK(status_of("GET /metrics HTTP/1.0\r\n\r\n") == 200);
  CHECK(status_of("GET /metrics?name[]=dt_stalls_total HTTP/1.1\r\n\r\n") == 200);
  CHECK(status_of("GET /metrics HTTP/1.1\n\n") == 200);  // by hand
}

TEST_CASE("request: everything else is refused") {
  const std::pair<const char*, int> refused[] = {
      {"POST /metrics HTTP/1.1\r\n", 405},
      {"HEAD /metrics HTTP/1.1\r\n", 405},
      {"GET / HTTP/1.1\r\n", 404},
      {"GET /metrics/ HTTP/1.1\r\n", 404},
      {"GET /metricsx HTTP/1.1\r\n", 404},
      {"GET http://localhost/metrics HTTP/1.1\r\n", 404},
      {"GET /metrics HTTP/2.0\r\n", 505},
      {"GET /metrics\r\n", 400},
      {"GET  /metrics HTTP/1.1\r\n", 400},
      {"GET /metrics HTTP/1.1 \r\n", 400},
      {"get /metrics HTTP/1.1\r\n", 400},
      {" /metrics HTTP/1.1\r\n", 400},
      {"GET /met\x01rics HTTP/1.1\r\n", 400},
      {"GET /metrics HTTQ/1.1\r\n", 400},
      {"GET /metrics HTTP/x.1\r\n", 400},
      {"\r\n", 400},
      {"\n", 400},
      {"\x16\x03\x01\n", 400},  // TLS
  };
  for (const auto& each : refused) {
    const std::string request = each.first;
    const int status = each.second;
    CAPTURE(request);
    CHECK(status_of(request) == status);
    CHECK(status_in_pieces(request) == status);
  }
}

TEST_CASE("request: no more than the limit is kept, whatever comes") {
  const std::string begin = "GET /metrics HTTP/1.1\r\n";
  const std::string fields(RequestReader::kMaxBytes, 'x');
  CHECK(status_of(begin + fields) == 431);
  CHECK(status_in_pieces(begin + fields) == 431);
  CHECK(status_of(fields) == 431);  // a line without an end
  std::string longest = begin + fields.substr(0, RequestReader::kMaxBytes - begin.size() - 4);
  CHECK(status_of(longest) == 0);
  CHECK(status_of(longest + "\r\n\r\n") == 200);
  CHECK(status_of(longest + "x\r\n\r\n") == 431);
}

TEST_CASE("request: the first verdict stays") {
  RequestReader reader;
  CHECK(reader.feed("GET /other HTTP/1.1\r\n") == 404);
  CHECK(reader.feed("GET /metrics HTTP/1.1\r\n\r\n") == 404);
}

TEST_CASE("response: head and body") {
  CHECK(response(200, "a 1\n") ==
        "HTTP/1.1 200 OK\r\n"
        "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        "Content-Length: 4\r\n"
        "Connection: close\r\n"
        "\r\n"
        "a 1\n");
  CHECK(response(405, "") ==
        "HTTP/1.1 405 Method Not Allowed\r\n"
        "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        "Content-Length: 35\r\n"
        "Allow: GET\r\n"
        "Connection: close\r\n"
        "\r\n"
        "405: only GET /metrics is answered\n");
}
