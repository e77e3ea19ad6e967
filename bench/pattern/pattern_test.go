package pattern_test

import (
	"testing"

	"sandbox.internal/bench/pattern"
)

func TestChecker(t *testing.T) {
	for name, tc := range map[string]struct {
		pieces []string
		lost   bool
	}{
		"all of it, in pieces":    {[]string{"ab", "cab", "", "ca"}, false},
		"the pattern, many times": {[]string{"abcabca"}, false},
		"a byte is wrong":         {[]string{"abcaXca"}, true},
		"a byte is missing":       {[]string{"abcaca"}, true},
		"the end is missing":      {[]string{"abcabc"}, true},
		"too much":                {[]string{"abcabcab"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := pattern.Checker{Bytes: []byte("abc"), Size: 7}
			var err error
			for _, piece := range tc.pieces {
				if err = c.Take([]byte(piece)); err != nil {
					break
				}
			}
			if err == nil {
				err = c.End()
			}
			if (err != nil) != tc.lost {
				t.Fatalf("error %v, lost should be %v", err, tc.lost)
			}
		})
	}
}
