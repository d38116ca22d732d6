# A test program that reports as Jest does, for projects in shell: each *.test.sh is a test.
for word; do
    case $word in --outputFile=*) report=${word#*=} ;; esac
done
code=0 comma=
exec > "$report"
printf '{"testResults":['
for file in *.test.sh; do
    [ -e "$file" ] || continue
    status=passed
    said=$(. "./$file" 2>&1) || {
        status=failed code=1
        said=$(printf %s "$said" | tr '\n"\\' '   ')
    }
    printf '%s{"name":"%s","assertionResults":[{"ancestorTitles":[],"title":"%s",' \
        "$comma" "$PWD/$file" "${file%.test.sh}"
    printf '"status":"%s","failureMessages":["%s"]}]}' "$status" "$said"
    comma=,
done
printf ']}'
exit $code
