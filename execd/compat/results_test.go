package compat

import (
	"net/http/httptest"
	"testing"
)

func TestTextBesidePlainText(t *testing.T) {
	const stream = "id: 1\ndata: {\"type\":\"init\",\"text\":\"x\"}\n\n" +
		"id: 2\ndata: {\"type\":\"result\",\"results\":{\"text/plain\":\"4 < 5\",\"image/png\":\"aGk=\"},\"timestamp\":1767366245004}\n\n" +
		"id: 3\ndata: {\"type\":\"result\",\"results\":{\"text/html\":\"<b>\"}}\n\n" +
		"data: {\"type\":\"stdout\",\"text\":\"\\\"results\\\":{\"}\n\n"
	const want = "id: 1\ndata: {\"type\":\"init\",\"text\":\"x\"}\n\n" +
		"id: 2\ndata: {\"results\":{\"image/png\":\"aGk=\",\"text\":\"4 \\u003c 5\",\"text/plain\":\"4 \\u003c 5\"}," +
		"\"timestamp\":1767366245004,\"type\":\"result\"}\n\n" +
		"id: 3\ndata: {\"type\":\"result\",\"results\":{\"text/html\":\"<b>\"}}\n\n" +
		"data: {\"type\":\"stdout\",\"text\":\"\\\"results\\\":{\"}\n\n"
	for _, size := range []int{1, 7, 64, len(stream)} {
		recorder := httptest.NewRecorder()
		recorder.Header().Set("Content-Type", "text/event-stream")
		w := &resultWriter{ResponseWriter: recorder}
		for rest := stream; rest != ""; {
			n := min(size, len(rest))
			if written, err := w.Write([]byte(rest[:n])); written != n || err != nil {
				t.Fatal(written, err)
			}
			rest = rest[n:]
		}
		if got := recorder.Body.String(); got != want {
			t.Errorf("in pieces of %d:\n%s\nwant\n%s", size, got, want)
		}
	}
	recorder := httptest.NewRecorder()
	recorder.Header().Set("Content-Type", "application/json")
	w := &resultWriter{ResponseWriter: recorder}
	if _, err := w.Write([]byte(`{"code":"NOT_FOUND"}`)); err != nil || recorder.Body.String() != `{"code":"NOT_FOUND"}` {
		t.Errorf("an error: %s, %v", recorder.Body, err)
	}
}
