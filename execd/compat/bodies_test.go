package compat

import (
	"bufio"
	"bytes"
	"io"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// TestNullIsAbsent: fields that are null are left out at every level, and nothing else changes.
func TestNullIsAbsent(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 64) + `null` + strings.Repeat(`}`, 64)
	for body, want := range map[string]string{
		`{"command":"x","cwd":null,"envs":{"A":null,"B":"null"},"uid":null}`: `{"command":"x","envs":{"B":"null"}}`,
		`{"code":"x","context":{"id":null,"language":"python"}}`:             `{"code":"x","context":{"language":"python"}}`,
		`[{"src":"/a","dest":"/b","mode":null},null]`:                        `[{"dest":"/b","src":"/a"},null]`,
		`{"text":"\ud800 null","n":1e400}`:                                   `{"n":1e400,"text":"\ud800 null"}`,
		`{"a": "unchanged"}`:                                                 `{"a": "unchanged"}`,
		`null`:                                                               `null`,
		`{"a":null`:                                                          `{"a":null`,
		``:                                                                   ``,
		deep:                                                                 deep,
	} {
		r := httptest.NewRequest("POST", "/command", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json; charset=utf-8")
		got, err := io.ReadAll(withoutNulls(r, nil).Body)
		if err != nil || string(got) != want {
			t.Errorf("%s is %s, %v, want %s", body, got, err, want)
		}
	}
	for name, change := range map[string]func(body string) (string, string){
		"another type": func(body string) (string, string) { return body, "text/plain" },
		"too long": func(body string) (string, string) {
			return body + strings.Repeat(" ", maxBody), "application/json"
		},
	} {
		body, media := change(`{"a":null}`)
		r := httptest.NewRequest("POST", "/command", struct{ io.Reader }{strings.NewReader(body)}) // of unknown length
		r.Header.Set("Content-Type", media)
		if got, err := io.ReadAll(withoutNulls(r, nil).Body); err != nil || string(got) != body {
			t.Errorf("%s: %d bytes, %v, want the %d sent", name, len(got), err, len(body))
		}
	}
}

// TestLines: the newline that ends the last line is left out, and no other.
func TestLines(t *testing.T) {
	long := strings.Repeat("x", 100)
	for _, c := range []struct {
		file          string
		offset, limit int64
		want          string
	}{
		{"one\ntwo\nthree\n", 2, 1, "two"},
		{"one\ntwo\nthree\n", 1, 2, "one\ntwo"},
		{"one\ntwo\nthree\n", 2, -1, "two\nthree"},
		{"one\ntwo\nthree", 3, 5, "three"},
		{"one\n\n\ntwo\n", 1, 3, "one\n\n"},
		{"\n\n", 1, -1, "\n"},
		{"one\r\ntwo\r\n", 1, 1, "one\r"},
		{"one\n", 2, 1, ""},
		{"", 1, 1, ""},
		{long + "\n" + long + "\n", 1, -1, long + "\n" + long},
	} {
		var out bytes.Buffer
		err := copyLines(&out, bufio.NewReaderSize(strings.NewReader(c.file), 16), c.offset, c.limit)
		if err != nil || out.String() != c.want {
			t.Errorf("%d lines of %q from line %d on: %q, %v, want %q", c.limit, c.file, c.offset, out.String(), err, c.want)
		}
	}
}

// TestCursor: a client that has no line asks for all of them, and one that has them all for none.
func TestCursor(t *testing.T) {
	for cursor, want := range map[string]string{"cursor=0": "", "cursor=1": "cursor=0", "cursor=12": "cursor=11", "": "", "cursor=-1": "cursor=-1", "cursor=x": "cursor=x"} {
		query, err := url.ParseQuery(cursor)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := ourCursor(query); got.Encode() != want {
			t.Errorf("%s is %s, want %s", cursor, got.Encode(), want)
		}
	}
	for last, want := range map[string]string{"-1": "0", "0": "1", "41": "42"} {
		recorder := httptest.NewRecorder()
		w := &cursorWriter{ResponseWriter: recorder}
		w.Header().Set(cursorHeader, last)
		w.WriteHeader(200)
		if got := recorder.Header().Get(cursorHeader); got != want {
			t.Errorf("the last line %s is the cursor %s, want %s", last, got, want)
		}
	}
}

// TestArgv: a program and its arguments are two fields of the contract.
func TestArgv(t *testing.T) {
	for body, want := range map[string]string{
		`{"argv":["a","$b",""],"cwd":null}`: `{"args":["$b",""],"command":"a"}`,
		`{"argv":["a"],"background":true}`:  `{"args":[],"background":true,"command":"a"}`,
		`{"argv":[]}`:                       `{"argv":[]}`,
		`{"argv":"a"}`:                      `{"argv":"a"}`,
		`{"argv":["a"],"command":"b"}`:      `{"argv":["a"],"command":"b"}`,
		`{"command":"echo \"argv\""}`:       `{"command":"echo \"argv\""}`,
	} {
		r := httptest.NewRequest("POST", "/command", strings.NewReader(body))
		if got, err := io.ReadAll(withoutNulls(r, ourArguments).Body); err != nil || string(got) != want {
			t.Errorf("%s is %s, %v, want %s", body, got, err, want)
		}
	}
}
