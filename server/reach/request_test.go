package reach_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/server/reach"
)

func TestSignaturesAreTakenOut(t *testing.T) {
	for name, tc := range map[string]struct {
		query, cookie, referer             string
		wantQuery, wantCookie, wantReferer string
		signatures                         reach.Signatures
	}{
		"nothing":         {query: "a=%31&b", cookie: "a=1;  b=2", referer: "http://h/?a=%31", wantQuery: "a=%31&b", wantCookie: "a=1;  b=2", wantReferer: "http://h/?a=%31"},
		"query alone":     {query: "sandbox-signature=S", signatures: reach.Signatures{Query: []string{"S"}}},
		"among others":    {query: "a=%31&sandbox-signature=S%2E&b;c=&&d", wantQuery: "a=%31&b;c=&&d", signatures: reach.Signatures{Query: []string{"S."}}},
		"an escaped name": {query: "%73andbox%2Dsignature=S&x", wantQuery: "x", signatures: reach.Signatures{Query: []string{"S"}}},
		"twice":           {query: "sandbox-signature=S&sandbox-signature=T", signatures: reach.Signatures{Query: []string{"S", "T"}}},
		"no value":        {query: "sandbox-signature&x=1", wantQuery: "x=1", signatures: reach.Signatures{Query: []string{""}}},
		"a bad value":     {query: "sandbox-signature=%zz&x=1", wantQuery: "x=1"},
		"a like name":     {query: "sandbox-signature2=S&asandbox-signature=S", wantQuery: "sandbox-signature2=S&asandbox-signature=S"},
		"cookie":          {cookie: "a=1; sandbox-signature=S; b=2", wantCookie: "a=1; b=2", signatures: reach.Signatures{Cookies: []string{"S"}}},
		"cookie alone":    {cookie: `sandbox-signature="S"`, signatures: reach.Signatures{Cookies: []string{"S"}}},
		"two cookies":     {cookie: "sandbox-signature=S;sandbox-signature=T", signatures: reach.Signatures{Cookies: []string{"S", "T"}}},
		"referer":         {referer: "http://h/p?sandbox-signature=S", wantReferer: "http://h/p"},
		"referer, more":   {referer: "http://h/p?x=%31&sandbox-signature=S&y", wantReferer: "http://h/p?x=%31&y"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/path%2Fx?"+tc.query, nil)
		for header, value := range map[string]string{"Cookie": tc.cookie, "Referer": tc.referer} {
			if value != "" {
				r.Header.Set(header, value)
			}
		}
		before := r.URL.RawQuery
		clean, got := reach.TakeSignatures(r)
		if clean.URL.RawQuery != tc.wantQuery || clean.Header.Get("Cookie") != tc.wantCookie || clean.Header.Get("Referer") != tc.wantReferer {
			t.Errorf("%s: query %q, cookie %q, referer %q", name, clean.URL.RawQuery, clean.Header.Get("Cookie"), clean.Header.Get("Referer"))
		}
		if !slices.Equal(got.Query, tc.signatures.Query) || !slices.Equal(got.Cookies, tc.signatures.Cookies) {
			t.Errorf("%s: found %+v, want %+v", name, got, tc.signatures)
		}
		if r.URL.RawQuery != before || r.Header.Get("Cookie") != tc.cookie {
			t.Errorf("%s: the client's request was changed", name)
		}
		if clean.URL.RawPath != "/path%2Fx" {
			t.Errorf("%s: path %q", name, clean.URL.RawPath)
		}
	}
}

// FuzzSignaturesAreTakenOut: whatever a request looks like, nothing that a server could take for a
// signature is left.
func FuzzSignaturesAreTakenOut(f *testing.F) {
	f.Add("a=1&sandbox-signature=x", "sandbox-signature=x; a", "http://h/?sandbox-signature=x#y")
	f.Add("sandbox%2dsignature=x", ";;sandbox-signature = x", "?sandbox-signature=x?&")
	f.Fuzz(func(t *testing.T, query, cookie, referer string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.URL.RawQuery = query
		r.Header["Cookie"], r.Header["Referer"] = []string{cookie}, []string{referer}
		clean, _ := reach.TakeSignatures(r)
		if clean.URL.Query().Has(reach.SignatureName) {
			t.Errorf("left in the query %q", clean.URL.RawQuery)
		}
		for _, left := range clean.Cookies() {
			if left.Name == reach.SignatureName {
				t.Errorf("left in the cookies %q", clean.Header["Cookie"])
			}
		}
		if _, after, _ := strings.Cut(clean.Header.Get("Referer"), "?"); strings.HasPrefix(after, reach.SignatureName+"=") {
			t.Errorf("left in the Referer %q", clean.Header.Get("Referer"))
		}
		if again, found := reach.TakeSignatures(clean); len(found.Query)+len(found.Cookies) > 0 || again.URL.RawQuery != clean.URL.RawQuery {
			t.Errorf("found again: %+v", found)
		}
	})
}
