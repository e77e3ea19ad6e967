package conform_test

import (
	"slices"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/conform"
)

const small = `
openapi: 3.0.3
info: {title: small, version: "1"}
paths:
  /things: {get: {responses: {"200": {description: all}}}}
  /things/{id}/parts/{part}: {get: {responses: {"200": {description: one}}}, delete: {responses: {"204": {description: gone}}}}
`

func TestRoutes(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	handler := func(echo.Context) error { return nil }
	e := echo.New()
	e.GET("/things", handler)
	e.GET("/things/:id/parts/:part", handler)
	e.POST("/things", handler)
	e.GET("/docs", handler)
	e.GET("/docs/assets", handler)
	e.Any("/proxy/:port/*", handler)
	var registered []string
	for _, route := range e.Routes() {
		registered = append(registered, route.Method+" "+route.Path)
	}

	missing, extra := conform.Routes(doc, registered, "/proxy/", "/docs")
	if want := []string{"DELETE /things/{id}/parts/{part}"}; !slices.Equal(missing, want) {
		t.Errorf("missing %q, want %q", missing, want)
	}
	if want := []string{"GET /docs/assets", "POST /things"}; !slices.Equal(extra, want) {
		t.Errorf("extra %q, want %q", extra, want)
	}

	registered = append(registered, "DELETE /things/:id/parts/:part")
	if missing, _ := conform.Routes(doc, registered); len(missing) > 0 {
		t.Errorf("everything is registered, but %q is missing", missing)
	}
}
