n=$(cat "$1/n" 2>/dev/null || echo 0)
n=$((n + 1))
echo $n > "$1/n"
[ $n -ge 3 ]
