package supervisor

import (
	"slices"
	"testing"
)

// TestReadClaim: what a program has not finished writing is no claim.
func TestReadClaim(t *testing.T) {
	t.Parallel()
	for text, whole := range map[string]bool{
		"1\x00a\x000\x00":               true,
		"2\x00a\x00\x001\x00B=c\nd\x00": true,
		"":                              false,
		"0\x000\x00":                    false,
		"1\x00a\x00":                    false,
		"1\x00a\x001\x00B=c":            false,
		"2\x00a\x000\x00":               false,
		"1\x00a\x000\x00b":              false,
		"x\x00":                         false,
	} {
		file, err := NewState()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if claim, err := readClaim(file); (err == nil) != whole {
			t.Errorf("%q: %+v, %v", text, claim, err)
		}
		file.Close()
	}
}

// TestClaimEnviron: a variable of the claim takes the place of the container's.
func TestClaimEnviron(t *testing.T) {
	t.Parallel()
	claim := Claim{Env: []string{"A=2", "C="}}
	if got := claim.Environ([]string{"A=1", "B=1", "A=3"}); !slices.Equal(got, []string{"B=1", "A=2", "C="}) {
		t.Errorf("the environment is %q", got)
	}
}
