package app

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"
)

// TestReadyz: what does not answer is the answer's error, and those who ask at the same time cost
// one question.
func TestReadyz(t *testing.T) {
	for name, want := range map[string]error{"ready": nil, "not ready": errors.New("no engine")} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			handler := readyz(func(ctx context.Context) error {
				asked++
				if _, bounded := ctx.Deadline(); !bounded {
					t.Error("the question has no deadline")
				}
				return want
			})
			for range 3 {
				answer := httptest.NewRecorder()
				err := handler(echo.New().NewContext(httptest.NewRequest(http.MethodGet, "/readyz", nil), answer))
				if !errors.Is(err, want) || want == nil && answer.Code != http.StatusOK {
					t.Errorf("%d, %v", answer.Code, err)
				}
			}
			if asked != 1 {
				t.Errorf("asked %d times", asked)
			}
		})
	}
}
