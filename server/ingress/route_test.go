package ingress_test

import (
	"strconv"
	"strings"
	"testing"

	"sandbox.internal/server/ingress"
)

const (
	box    = "5f0c1e0e-2f0b-4a53-9b0e-0a4a3c1c7d11"
	domain = "ingress.example.com"
)

// TestModesOfTheDocument has the examples of "Networking rules", 5, with an id and a port put in.
func TestModesOfTheDocument(t *testing.T) {
	want := ingress.Destination{Sandbox: box, Port: 8000}
	if got, err := ingress.ParseHost(box+"-8000."+domain, domain); err != nil || got != want {
		t.Errorf("wildcard: %+v, %v", got, err)
	}
	if got, err := ingress.ParseHeader(box + "-8000"); err != nil || got != want {
		t.Errorf("header: %+v, %v", got, err)
	}
	want.Prefix = "/" + box + "/8000"
	if got, err := ingress.ParsePath("/" + box + "/8000/index.html"); err != nil || got != want {
		t.Errorf("uri: %+v, %v", got, err)
	}
}

func TestParseHost(t *testing.T) {
	for host, want := range map[string]ingress.Destination{
		"a-1." + domain:                          {Sandbox: "a", Port: 1},
		"A-1." + strings.ToUpper(domain) + ":80": {Sandbox: "a", Port: 1},
		"a-1." + domain + ".":                    {Sandbox: "a", Port: 1},
		"a-1." + domain + ".:443":                {Sandbox: "a", Port: 1},
		"a-1-2." + domain:                        {Sandbox: "a-1", Port: 2},
		"a-65535." + domain:                      {Sandbox: "a", Port: 65535},
	} {
		if got, err := ingress.ParseHost(host, domain); err != nil || got != want {
			t.Errorf("%q: %+v, %v", host, got, err)
		}
	}
	for _, host := range []string{
		"", domain, "." + domain, "a-1", "a-1.example.com", "a-1" + domain, "x.a-1." + domain, "a-0." + domain, "a-01." + domain, "a-65536." + domain,
		"a-+1." + domain, "a1." + domain, "-1." + domain, "--1." + domain, "a--1." + domain, "a_b-1." + domain, "[::1]", "a-1." + domain + ":80:80", "ä-1." + domain,
	} {
		if got, err := ingress.ParseHost(host, domain); err == nil {
			t.Errorf("%q led to %+v", host, got)
		}
	}
}

func TestParsePath(t *testing.T) {
	for path, prefix := range map[string]string{"/a/1": "/a/1", "/a/1/": "/a/1", "/a/1//x": "/a/1", "/a/1/../b/2": "/a/1", "/a-b/80/%2F": "/a-b/80"} {
		if got, err := ingress.ParsePath(path); err != nil || got.Prefix != prefix {
			t.Errorf("%q: %+v, %v", path, got, err)
		}
	}
	for _, path := range []string{"", "/", "a/1", "//a/1", "/a", "/a/", "/a/x", "/a/0", "/a/01", "/a/65536", "/A/1", "/a%2F1/1", "/%61/1", "/a/%31", "/./1", "/../1", "/a-/1"} {
		if got, err := ingress.ParsePath(path); err == nil {
			t.Errorf("%q led to %+v", path, got)
		}
	}
}

func TestParseHeader(t *testing.T) {
	for _, value := range []string{"", "-", "a", "a-", "-1", "a-0", "a-01", "a-1 ", " a-1", "a-1,b-2", "A-1", "a.b-1", "a-1.x", "a/1"} {
		if got, err := ingress.ParseHeader(value); err == nil {
			t.Errorf("%q led to %+v", value, got)
		}
	}
}

// same holds what a parser returned to the one way in which it could have been written.
func same(t *testing.T, got ingress.Destination) string {
	t.Helper()
	if got.Sandbox == "" || len(got.Sandbox) > 63 || got.Port < 1 || got.Port > 65535 || strings.Trim(got.Sandbox, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		t.Errorf("%+v is no destination", got)
	}
	return got.Sandbox + "-" + strconv.Itoa(got.Port)
}

func FuzzParseHost(f *testing.F) {
	f.Add(box + "-8000." + domain)
	f.Add("A-1." + domain + ".:443")
	f.Add("[::1%25x]:80")
	f.Fuzz(func(t *testing.T, host string) {
		got, err := ingress.ParseHost(host, domain)
		if err != nil {
			return
		}
		if name := same(t, got) + "." + domain; !strings.HasPrefix(strings.ToLower(host), name) || got.Prefix != "" {
			t.Errorf("%q led to %+v", host, got)
		}
	})
}

func FuzzParsePath(f *testing.F) {
	f.Add("/" + box + "/8000/index.html")
	f.Add("/a/1/%2e%2e//")
	f.Fuzz(func(t *testing.T, path string) {
		got, err := ingress.ParsePath(path)
		if err != nil {
			return
		}
		same(t, got)
		if prefix := "/" + got.Sandbox + "/" + strconv.Itoa(got.Port); got.Prefix != prefix || path != prefix && !strings.HasPrefix(path, prefix+"/") {
			t.Errorf("%q led to %+v", path, got)
		}
	})
}

func FuzzParseHeader(f *testing.F) {
	f.Add(box + "-8000")
	f.Fuzz(func(t *testing.T, value string) {
		got, err := ingress.ParseHeader(value)
		if err == nil && same(t, got) != value {
			t.Errorf("%q led to %+v", value, got)
		}
	})
}

// FuzzParseRoutes: a file of routes is read or refused, and does not crash the ingress.
func FuzzParseRoutes(f *testing.F) {
	f.Add("[[routes]]\nsandbox = \"a\"\naddress = \"127.0.0.1:1\"\ntoken = \"t\"\n")
	f.Fuzz(func(_ *testing.T, text string) { _ = ingress.ParseRoutes([]byte(text)) })
}
