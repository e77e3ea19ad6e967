package reach_test

import (
	"net/http"
	"reflect"
	"testing"

	"sandbox.internal/server/reach"
)

func TestPresentedKeys(t *testing.T) {
	for name, tt := range map[string]struct {
		header http.Header
		want   []reach.PresentedKey
	}{
		"none":             {http.Header{}, nil},
		"the document's":   {http.Header{"Service-Api-Key": {"k"}}, []reach.PresentedKey{{Header: "SERVICE-API-KEY", Key: "k"}}},
		"bearer":           {http.Header{"Authorization": {"Bearer k"}}, []reach.PresentedKey{{Header: "Authorization", Key: "k"}}},
		"bearer, any case": {http.Header{"Authorization": {"bEARER  k "}}, []reach.PresentedKey{{Header: "Authorization", Key: "k"}}},
		"basic":            {http.Header{"Authorization": {"Basic azpr"}}, nil},
		"bearer, empty":    {http.Header{"Authorization": {"Bearer "}}, nil},
		"X-API-Key":        {http.Header{"X-Api-Key": {"k"}}, []reach.PresentedKey{{Header: "X-API-Key", Key: "k"}}},
		"two": {http.Header{"X-Api-Key": {"a"}, "Authorization": {"Bearer b"}},
			[]reach.PresentedKey{{Header: "Authorization", Key: "b"}, {Header: "X-API-Key", Key: "a"}}},
		"the document's counts alone": {http.Header{"Service-Api-Key": {"k"}, "X-Api-Key": {"a"}}, []reach.PresentedKey{{Header: "SERVICE-API-KEY", Key: "k"}}},
	} {
		if got := reach.PresentedKeys(tt.header); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestWithoutKeys(t *testing.T) {
	isKey := func(s string) bool { return s == "key" }
	for name, tt := range map[string]struct{ header, want http.Header }{
		"all forms":         {http.Header{"Service-Api-Key": {"key"}, "Authorization": {"bearer key"}, "X-Api-Key": {"key"}, "Accept": {"a"}}, http.Header{"Accept": {"a"}}},
		"the sandbox's own": {http.Header{"Authorization": {"Bearer own"}, "X-Api-Key": {"own"}}, http.Header{"Authorization": {"Bearer own"}, "X-Api-Key": {"own"}}},
		"basic":             {http.Header{"Authorization": {"Basic key"}}, http.Header{"Authorization": {"Basic key"}}},
		"both": {http.Header{"Authorization": {"Bearer own", "Bearer key"}, "X-Api-Key": {"key", "own"}},
			http.Header{"Authorization": {"Bearer own"}, "X-Api-Key": {"own"}}},
		"a wrong key in the document's header": {http.Header{"Service-Api-Key": {"wrong"}}, http.Header{}},
	} {
		before := tt.header.Clone()
		got := reach.WithoutKeys(&http.Request{Header: tt.header}, isKey)
		if !reflect.DeepEqual(got.Header, tt.want) {
			t.Errorf("%s: %v, want %v", name, got.Header, tt.want)
		}
		if !reflect.DeepEqual(tt.header, before) {
			t.Errorf("%s: the request given has changed: %v", name, tt.header)
		}
	}
}
