package lifecycle_test

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sandbox.internal/server/lifecycle"
)

func TestParseMetadataFilter(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want map[string]string
	}{
		"nothing":           {"", nil},
		"one":               {"name=box", map[string]string{"name": "box"}},
		"two":               {"name=box&team=a", map[string]string{"name": "box", "team": "a"}},
		"empty value":       {"name=", map[string]string{"name": ""}},
		"plus is a space":   {"a+b=c+d", map[string]string{"a b": "c d"}},
		"encoded plus":      {"a%2Bb=c%2Bd", map[string]string{"a+b": "c+d"}},
		"encoded signs":     {"a%26b%3Dc=d%26e%3Df", map[string]string{"a&b=c": "d&e=f"}},
		"encoded percent":   {"done=100%25", map[string]string{"done": "100%"}},
		"decoded only once": {"a=%2525", map[string]string{"a": "%25"}},
		"= in the value":    {"expr=a=b", map[string]string{"expr": "a=b"}},
		"slash and colon":   {"example.com/key=a:b", map[string]string{"example.com/key": "a:b"}},
		"beyond ASCII":      {"имя=%D0%B1", map[string]string{"имя": "б"}},
		"the same twice":    {"a=1&a=1", map[string]string{"a": "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := lifecycle.ParseMetadataFilter(test.text)
			if err != nil || !maps.Equal(got, test.want) {
				t.Errorf("got %v, %v; want %v", got, err, test.want)
			}
		})
	}
}

func TestParseMetadataFilterInvalid(t *testing.T) {
	for name, test := range map[string]struct{ text, rule string }{
		"no sign":          {"name", `"name" is not a key=value pair`},
		"no key":           {"=box", `"=box" is not a key=value pair`},
		"nothing at end":   {"a=1&", `"" is not a key=value pair`},
		"nothing between":  {"a=1&&b=2", `"" is not a key=value pair`},
		"bare percent":     {"done=100%", `"done=100%" is not a key=value pair`},
		"percent in key":   {"a%zz=1", `"a%zz=1" is not a key=value pair`},
		"two values":       {"a=1&a=2", `key "a" is asked for with two different values`},
		"two spellings":    {"a=1&%61=2", `key "a" is asked for with two different values`},
		"the second wrong": {"a=1&b", `"b" is not a key=value pair`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := lifecycle.ParseMetadataFilter(test.text)
			expectInvalid(t, err, "metadata: ", test.rule)
		})
	}
}

// TestMetadataFilterRoundTrip goes the whole way of a client: encode the pairs, put them into a
// query, let HTTP decode the query.
func TestMetadataFilterRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.MapOf(rapid.StringN(1, -1, -1), rapid.String()).Draw(t, "metadata")
		var pairs []string
		for key, value := range want {
			pairs = append(pairs, url.QueryEscape(key)+"="+url.QueryEscape(value))
		}
		text := strings.Join(pairs, "&")
		query, err := url.ParseQuery(url.Values{"metadata": {text}}.Encode())
		if err != nil || query.Get("metadata") != text {
			t.Fatalf("HTTP turned %q into %q (error %v)", text, query.Get("metadata"), err)
		}
		got, err := lifecycle.ParseMetadataFilter(query.Get("metadata"))
		if err != nil || !maps.Equal(got, want) {
			t.Fatalf("%q: got %q, %v; want %q", text, got, err, want)
		}
	})
}

func TestMergeMetadata(t *testing.T) {
	text := func(s string) *string { return &s }
	for name, tt := range map[string]struct {
		metadata map[string]string
		patch    map[string]*string
		want     map[string]string
	}{
		"nothing on nothing": {nil, nil, map[string]string{}},
		"set":                {nil, map[string]*string{"a": text("1")}, map[string]string{"a": "1"}},
		"replace and keep":   {map[string]string{"a": "1", "b": "2"}, map[string]*string{"a": text("")}, map[string]string{"a": "", "b": "2"}},
		"remove":             {map[string]string{"a": "1", "b": "2"}, map[string]*string{"a": nil, "c": nil}, map[string]string{"b": "2"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := maps.Clone(tt.metadata)
			got, err := lifecycle.MergeMetadata(tt.metadata, tt.patch)
			if err != nil || got == nil || !maps.Equal(got, tt.want) {
				t.Errorf("%v, %v; want %v", got, err, tt.want)
			}
			if !maps.Equal(tt.metadata, before) {
				t.Errorf("the original changed to %v", tt.metadata)
			}
		})
	}
	full := map[string]string{}
	for i := range lifecycle.MaxMetadata / lifecycle.MaxMetadataValue {
		full[fmt.Sprintf("%04d", i)] = strings.Repeat("x", lifecycle.MaxMetadataValue-4)
	}
	if _, err := lifecycle.MergeMetadata(full, nil); err != nil {
		t.Errorf("as much as there may be: %v", err)
	}
	for _, patch := range []map[string]*string{
		{"one more": text("")}, {"": text("")}, {lifecycle.LabelPrefix + "x": text("")}, {"a": text("\xff")}, {"\xff": text("a")},
	} {
		if _, err := lifecycle.MergeMetadata(full, patch); err == nil || !strings.Contains(err.Error(), "metadata") {
			t.Errorf("%v: %v", patch, err)
		}
	}
}

// TestMergeOfManyPairs: patches cannot add up to more pairs than a sandbox is created with, and can
// take away from what has more.
func TestMergeOfManyPairs(t *testing.T) {
	more, most := "more", pairs(lifecycle.MaxMetadataPairs)
	_, err := lifecycle.MergeMetadata(most, map[string]*string{"more": &more})
	expectInvalid(t, err, "metadata: ", "at most 256 pairs, has 257")
	if _, err := lifecycle.MergeMetadata(most, map[string]*string{"more": &more, "0": nil}); err != nil {
		t.Error(err)
	}
	if _, err := lifecycle.MergeMetadata(pairs(257), map[string]*string{"0": nil}); err != nil {
		t.Error(err)
	}
}

func TestDiffMetadata(t *testing.T) {
	before := map[string]string{"same": "1", "changed": "1", "gone": "1", "away": "1"}
	set, removed := lifecycle.DiffMetadata(before, map[string]string{"same": "1", "changed": "2", "new": ""})
	if want := map[string]string{"changed": "2", "new": ""}; !maps.Equal(set, want) || !slices.Equal(removed, []string{"away", "gone"}) {
		t.Errorf("set %v, removed %v", set, removed)
	}
	if set, removed := lifecycle.DiffMetadata(before, before); set != nil || removed != nil {
		t.Errorf("of what is the same: set %v, removed %v", set, removed)
	}
}
