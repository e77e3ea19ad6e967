package document_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
)

// What kin-openapi says about a request, in the words of package rules: "" when it breaks no rule.

func oracleOfBody(schema *openapi3.Schema, value any) string {
	err := schema.VisitJSON(value, openapi3.VisitAsRequest())
	var broken *openapi3.SchemaError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &broken):
		return inWords(broken)
	}
	return "error: " + err.Error()
}

func oracleOfParameter(param *openapi3.Parameter, values []string) string {
	input := &openapi3filter.RequestValidationInput{
		Request: &http.Request{Header: http.Header{}}, QueryParams: url.Values{}, PathParams: map[string]string{},
		Options: &openapi3filter.Options{SkipSettingDefaults: true},
	}
	if len(values) > 0 {
		switch param.In {
		case openapi3.ParameterInPath:
			input.PathParams[param.Name] = values[0]
		case openapi3.ParameterInQuery:
			input.QueryParams[param.Name] = values
		case openapi3.ParameterInHeader:
			input.Request.Header[http.CanonicalHeaderKey(param.Name)] = values
		}
	}
	err := openapi3filter.ValidateParameter(context.Background(), input, param)
	var broken *openapi3.SchemaError
	var unparsed *openapi3filter.ParseError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, openapi3filter.ErrInvalidRequired):
		return ": is required"
	case errors.Is(err, openapi3filter.ErrInvalidEmptyValue):
		return ": must not be empty"
	case errors.As(err, &broken):
		return inWords(broken)
	case errors.As(err, &unparsed):
		return textInWords(unparsed)
	}
	return "error: " + err.Error()
}

// textInWords reports text that is no value of the parameter's type.
func textInWords(err *openapi3filter.ParseError) string {
	place := ""
	for _, step := range err.Path() {
		place += fmt.Sprintf("/%v", step)
	}
	for {
		inner, ok := err.Cause.(*openapi3filter.ParseError)
		if !ok {
			break
		}
		err = inner
	}
	if errors.Is(err, strconv.ErrRange) {
		return place + ": number is too large"
	}
	kind, _ := strings.CutPrefix(err.Reason, "an invalid ")
	article := "a "
	if strings.HasPrefix(kind, "i") {
		article = "an "
	}
	return place + ": value must be " + article + kind
}

// inWords puts a broken rule into words. The library's own message carries the whole schema and the
// client's value.
func inWords(err *openapi3.SchemaError) string {
	// Behind "not all of these schemas" stands the rule that a person can act on.
	for err.SchemaField == "allOf" {
		var inner *openapi3.SchemaError
		if !errors.As(err.Origin, &inner) {
			break
		}
		err = inner
	}
	place := ""
	for _, step := range err.JSONPointer() {
		place += "/" + step
	}
	switch err.SchemaField {
	case "required":
		return place + ": is required"
	case "nullable":
		return place + ": must not be null"
	case "properties":
		quoted, qerr := strconv.QuotedPrefix(strings.TrimPrefix(err.Reason, "property "))
		name, uerr := strconv.Unquote(quoted)
		if qerr == nil && uerr == nil {
			return place + "/" + name + ": unknown field"
		}
	case "enum":
		if err.Value == nil {
			return place + ": must not be null"
		}
		return place + ": value must be one of " + strings.TrimPrefix(err.Reason, "value is not one of the allowed values ")
	case "format":
		return place + ": must be a valid " + err.Schema.Format
	case "pattern":
		if words, ok := err.Schema.Extensions["x-pattern-words"].(string); ok {
			return place + ": must be " + words
		}
	case "oneOf":
		return place + ": value must match exactly one of the allowed forms"
	}
	return place + ": " + err.Reason
}
