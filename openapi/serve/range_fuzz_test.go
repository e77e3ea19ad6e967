package serve_test

import (
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/respond"
)

// FuzzRange holds ranges to what RFC 9110 says about one range of bytes. Everything else is the
// whole file, where the header is to be ignored, or 416.
func FuzzRange(f *testing.F) {
	for _, seed := range []string{
		"", "bytes=0-3", "bytes=7-", "bytes=-2", "bytes=8-99", "bytes=10-", "bytes=5-2",
		"bytes=a-b", "bytes=", "bytes=-", "garbage", "bytes", "=", "bytes=0-1,4-5",
		"lines=1-2", "Bytes=0-0", "bytes =0-0", "bytes= 0-0 ", "bytes=-0", "bytes=-00", "bytes=-+0",
		"bytes=+1-2", "bytes=1-+2", "bytes=--1", "bytes=0x1-", "bytes=00-03",
		"bytes=0-9223372036854775808", "bytes=9223372036854775808-", "bytes=-9223372036854775808",
		"bytes=-99999999999999999999", "bytes=1 - 2", "bytes=1-2-3", "bytes=\x00-",
	} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, header string, filled bool) {
		data := ""
		if filled {
			data = content
		}
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.Header["Range"] = []string{header}
		recorder := httptest.NewRecorder()
		err := respond.Download{Request: request, Name: "file",
			Content: strings.NewReader(data)}.Serve(recorder)
		status, part := wantedRange(header, data)
		if err != nil {
			var problem *serve.Problem
			if !errors.As(err, &problem) ||
				problem.Status != http.StatusRequestedRangeNotSatisfiable {
				t.Fatalf("%q: %v", header, err)
			}
			if status != problem.Status ||
				recorder.Header().Get("Content-Range") != fmt.Sprintf("bytes */%d", len(data)) {
				t.Errorf("%q: refused with Content-Range %q, want %d %q", header,
					recorder.Header().Get("Content-Range"), status, part)
			}
			return
		}
		if recorder.Code != status || recorder.Body.String() != part ||
			recorder.Header().Get("Content-Length") != fmt.Sprint(len(part)) {
			t.Errorf("%q: %d %q, want %d %q", header, recorder.Code, recorder.Body, status, part)
		}
		if first := strings.Index(data, part); status == http.StatusPartialContent &&
			recorder.Header().Get("Content-Range") != fmt.Sprintf("bytes %d-%d/%d", first,
				first+len(part)-1, len(data)) {
			t.Errorf("%q: Content-Range %q for %q", header, recorder.Header().Get("Content-Range"),
				part)
		}
	})
}

var (
	anyRange  = regexp.MustCompile(`^[^=]*=`)
	byteRange = regexp.MustCompile(`(?i)^[ \t]*bytes[ \t]*=`)
	oneRange  = regexp.MustCompile(`^[^=]*=[ \t]*([0-9]*)-([0-9]*)[ \t]*$`)
)

// wantedRange is the answer to a Range header, found in another way than the code under test does.
func wantedRange(header, data string) (status int, part string) {
	switch {
	case header == "":
		return http.StatusOK, data
	case !anyRange.MatchString(header):
		return http.StatusRequestedRangeNotSatisfiable, ""
	case !byteRange.MatchString(header), strings.Contains(header[strings.Index(header, "="):], ","):
		return http.StatusOK, data
	}
	found := oneRange.FindStringSubmatch(header)
	if found == nil || found[1] == "" && found[2] == "" {
		return http.StatusRequestedRangeNotSatisfiable, ""
	}
	size := big.NewInt(int64(len(data)))
	number := func(digits string, otherwise *big.Int) *big.Int {
		n, ok := new(big.Int).SetString(digits, 10)
		if !ok {
			return otherwise
		}
		return n
	}
	end := new(big.Int).Sub(size, big.NewInt(1))
	first, last := number(found[1], nil), number(found[2], end)
	if first == nil { // the last bytes
		if last.Sign() == 0 {
			return http.StatusRequestedRangeNotSatisfiable, ""
		}
		first, last = new(big.Int).Sub(size, last), end
		if first.Sign() < 0 {
			first = new(big.Int)
		}
	}
	if data == "" { // there is nothing to cut from, as http.ServeContent has it
		return http.StatusOK, ""
	}
	if first.Cmp(end) > 0 || first.Cmp(last) > 0 {
		return http.StatusRequestedRangeNotSatisfiable, ""
	}
	if last.Cmp(end) > 0 {
		last = end
	}
	return http.StatusPartialContent, data[first.Int64() : last.Int64()+1]
}
