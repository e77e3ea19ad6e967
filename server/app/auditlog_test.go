package app_test

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/app"
	"sandbox.internal/server/audit"
)

// TestAuditLogOfLongMethod: whatever method a client sends, the log can be taken up afterwards.
func TestAuditLogOfLongMethod(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(path, zerolog.Nop(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	server, err := serve.New(serve.Options{Rules: &rules.Contract{}, Logger: zerolog.Nop(), AuditLog: app.AuditLog(log, func() { t.Error("a line is lost") })})
	if err != nil {
		t.Fatal(err)
	}
	method := strings.Repeat("&", 200<<10) // each is 6 bytes of JSON
	server.Echo().Add(method, "/port", func(c echo.Context) error { return c.NoContent(http.StatusNoContent) }, server.Authenticated)
	answer := httptest.NewRecorder()
	server.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), method, "/port", nil))
	if answer.Code != http.StatusNoContent {
		t.Errorf("status %d", answer.Code)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := audit.Open(path, zerolog.Nop(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
