package api

import (
	"testing"

	gen "sandbox.internal/gen/execd"
)

// TestLanguageOfACellGivenTwice: both must be the same, and letter case does not matter.
func TestLanguageOfACellGivenTwice(t *testing.T) {
	t.Parallel()
	for language, same := range map[string]bool{"python": true, "Python": true, "bash": false} {
		request := gen.CodeRequest{Language: &language}
		request.Context = &gen.ContextChoice{Language: new("PYTHON")}
		if _, err := fromCodeRequest(request); (err == nil) != same {
			t.Errorf("%s and PYTHON: %v", language, err)
		}
	}
}
