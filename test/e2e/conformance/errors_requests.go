package conformance

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// RefuseUnknownParameters asks each operation with a query parameter that the contract does not
// have.
func RefuseUnknownParameters(t *testing.T, s *Service, operations []Operation) {
	for _, o := range operations {
		WantProblem(t, s.Send(t, o.Method, o.Path+"?unknown=1", o.Body), http.StatusBadRequest,
			"INVALID_REQUEST_BODY", "unknown")
	}
}

func testRefusedListings(t *testing.T, s *Service) {
	for query, words := range map[string][]string{
		"page=0":                 {"page", "1"},
		"page=-1":                {"page", "1"},
		"page=x":                 {"page", "integer"},
		"pageSize=0":             {"pageSize", "1"},
		"pageSize=1001":          {"pageSize", "1000"},
		"page=1&page=2":          {"page", "once"},
		"state=Sleeping":         {"state", "Sleeping", "Running"},
		"metadata=team":          {"metadata", "team", "key=value"},
		"metadata=%3Dred":        {"metadata", "key=value"},
		"metadata=team%3D%25zz":  {"metadata", "percent"},
		"metadata=a%3D1%26a%3D2": {"metadata", "two different values"},
		"metadata=%zz":           {"query", "%zz"},
	} {
		t.Run(query, func(t *testing.T) {
			WantProblem(t, s.Send(t, http.MethodGet, "/v1/sandboxes?"+query, ""), 400,
				"INVALID_REQUEST_BODY", words...)
		})
	}
}

func testRefusedPorts(t *testing.T, s *Service, id string) {
	for _, port := range []string{"0", "65536", "-1", "http"} {
		WantProblem(t, s.Send(t, http.MethodGet, "/v1/sandboxes/"+id+"/endpoints/"+port, ""), 400,
			"INVALID_REQUEST_BODY", "port")
	}
}

func testRefusedExtensions(t *testing.T, s *Service, id string) {
	path := "/v1/sandboxes/" + id
	for query, word := range map[string]string{
		path + "/logs?tail=-1":      "tail",
		path + "/logs?tail=many":    "tail",
		path + "/logs?since=today":  "since",
		path + "/logs?follow=maybe": "follow",
		path + "/events?after=-1":   "after",
		path + "/events?after=x":    "after",
		path + "/activity?after=-1": "after",
		path + "/activity?after=x":  "after",

		path + "/activity/watch?after=-1": "after",
		path + "/activity/watch?after=x":  "after",

		"/v1/events?after=1.5":       "after",
		"/v1/events?after=1&after=2": "once",
	} {
		WantProblem(t, s.Send(t, http.MethodGet, query, ""), 400, "INVALID_REQUEST_BODY", word)
	}
	for _, events := range []string{path + "/events", path + "/activity/watch", "/v1/events"} {
		for _, last := range []string{"x", "-1", "1.5", "99999999999999999999"} {
			WantProblem(t, s.Send(t, http.MethodGet, events, "", "Last-Event-ID", last), 400,
				"INVALID_REQUEST_BODY", "Last-Event-ID")
		}
	}
	for body, word := range map[string]string{
		`[]`:                         "object",
		`null`:                       "body",
		`"name"`:                     "object",
		`{"name":1}`:                 "string",
		`{"name":`:                   "JSON",
		`{"":"x"}`:                   "key",
		`{"sandbox.internal/x":"y"}`: "reserved",
		`{"name":"` + strings.Repeat("x", 4097) + `"}`: "4096",
		`{"` + strings.Repeat("x", 257) + `":""}`:      "256",
	} {
		WantProblem(t, s.Send(t, http.MethodPatch, path+"/metadata", body), 400,
			"INVALID_REQUEST_BODY", word)
	}
	WantProblem(t, s.Send(t, http.MethodPatch, path+"/metadata", `{}`, "Content-Type",
		"text/plain"), 400, "INVALID_REQUEST_BODY", "merge-patch")
	WantProblem(t, s.Send(t, http.MethodPatch, path+"/metadata",
		`{"name":"`+strings.Repeat("x", 1<<20)+`"}`), 413, "REQUEST_TOO_LARGE", "1048576")
}

func testTooLarge(t *testing.T, s *Service, id string) {
	body := `{"expiresAt":"` + strings.Repeat("x", 1<<20) + `"}`
	for _, path := range []string{"/v1/sandboxes", "/v1/sandboxes/" + id + "/renew-expiration", "/v1/sandboxes/" + id + "/pause"} {
		WantProblem(t, s.Send(t, http.MethodPost, path, body), 413, "REQUEST_TOO_LARGE", "body",
			"1048576")
	}
}

func testRefusedRenewals(t *testing.T, s *Service, id string) {
	stamp := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
	for name, c := range map[string]struct {
		body  string
		words []string
	}{
		"the past": {Renewal(stamp(-time.Minute)),
			[]string{"expiresAt", "in the future"}},
		"before the current": {Renewal(stamp(time.Minute)),
			[]string{"expiresAt", "later than the current expiry"}},
		"the current": {Renewal(s.Get(t, id).ExpiresAt.Format(time.RFC3339Nano)),
			[]string{"expiresAt", "later than the current expiry"}},
		"too far": {Renewal(stamp(25 * time.Hour)),
			[]string{"expiresAt", "86400 seconds"}},
		"no time":  {Renewal("tomorrow"), []string{"expiresAt"}},
		"a number": {`{"expiresAt":1}`, []string{"expiresAt", "string"}},
		"missing":  {`{}`, []string{"expiresAt"}},
		"unknown field": {`{"expiresAt":"2030-01-01T00:00:00Z","expiresat":"x"}`,
			[]string{"expiresat"}},
		"malformed": {`{"expiresAt":`, []string{"body", "JSON"}},
		"empty":     {``, []string{"body", "required"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := s.Send(t, http.MethodPost, "/v1/sandboxes/"+id+"/renew-expiration", c.body)
			WantProblem(t, got, 400, "INVALID_REQUEST_BODY", c.words...)
		})
	}
}
